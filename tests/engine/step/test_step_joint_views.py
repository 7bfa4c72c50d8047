"""Both clean views in one pass of 2B sentences compute what two passes of B compute."""

from dataclasses import replace

import pytest
import torch

from tests.engine.step.watching import assert_same_gradients

OTHERS = ["hate it", "the music is good", "it was sad", "a slow plot", "very funny", "never", "one great scene"]


def outcome(make_step, batch_of, joint_views, **options):
    recorded = make_step(**options)
    recorded.step.passes.joint_views = joint_views
    encoded = []
    encode = recorded.step.encoder.encode

    def counted(x, batch, dropout=None):
        encoded.append(batch.num_sentences)
        return encode(x, batch, dropout)

    recorded.step.encoder.encode = counted
    torch.manual_seed(5)
    loss, grads = recorded.run(batch_of(recorded.step.encoder))
    return encoded, loss, grads, recorded


def assert_same(one, other):
    torch.testing.assert_close(one[1], other[1], rtol=1e-12, atol=0)
    assert_same_gradients(one[2], other[2])


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "simcse"},
        {"objective": "simcse", "path": "generic", "pooling": "mean"},
        {"objective": "simcse", "objective_options": {"head": "bn_mlp"}},
        {"sigma": 0.0, "use_eta": False},
        {"norm": "l2", "sigma": 0.1, "pooling": "mean"},
        {"reuse": "free"},
        {"reuse": "adaptive", "perturb_at": "word"},
        {"objective_options": {"rtd_generator": "unigram"}},
    ],
    ids=str,
)
def test_equals_two_passes_without_dropout(make_step, sentences, options):
    def batch_of(encoder):
        return encoder.pack(sentences)

    joint, separate = (outcome(make_step, batch_of, joins, **options) for joins in (True, False))
    rows = len(sentences)
    assert joint[0][0] == 2 * rows and separate[0][:2] == [rows, rows]
    assert joint[0][1:] == separate[0][2:]
    assert_same(joint, separate)


def test_given_hard_negatives_still_have_a_pass_of_their_own(make_step, sentences):
    def batch_of(encoder):
        return replace(encoder.pack(sentences), hard_negative=encoder.pack(OTHERS))

    joint, separate = (outcome(make_step, batch_of, joins, objective="simcse") for joins in (True, False))
    assert joint[0] == [2 * len(sentences), len(OTHERS)]
    assert_same(joint, separate)


def test_the_views_have_masks_of_their_own(make_step, sentences):
    recorded = make_step("simcse", dropout=0.2)
    step = recorded.step
    step.passes.joint_views = True
    pooled = []
    encode = step.encoder.encode
    step.encoder.encode = lambda x, batch, dropout=None: pooled.append(encode(x, batch, dropout)) or pooled[-1]
    step(step.encoder.pack(sentences))
    z, z_positive = pooled[0].chunk(2)
    assert ((z - z_positive).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize(
    "options", [{"reuse": "none"}, {"inner_dropout": "frozen"}, {"objective": "uscal", "method": "fgm"}], ids=str
)
def test_masks_that_are_drawn_again_need_passes_of_their_own(make_step, sentences, options):
    encoded, *_ = outcome(make_step, lambda e: e.pack(sentences), True, dropout=0.1, **options)
    assert 2 * len(sentences) not in encoded


def test_given_positives_have_a_pass_of_their_own(make_step, sentences):
    encoded, *_ = outcome(
        make_step, lambda e: replace(e.pack(sentences), positive=e.pack(OTHERS)), True, objective="simcse"
    )
    assert encoded == [len(sentences), len(OTHERS)]


def test_small_batches_are_joined_where_nothing_is_said(make_step, sentences):
    step = make_step(objective="simcse", joint_views=None).step
    batch = step.encoder.pack(sentences)
    assert step.passes.joins_views(batch)
    step.passes.most_joint_tokens = 2 * batch.num_tokens - 1
    assert not step.passes.joins_views(batch)


def test_a_batch_twice_has_each_sentence_twice(tiny_encoder, sentences):
    batch = tiny_encoder().pack(sentences)
    twice = batch.twice()
    assert twice.lengths.tolist() == batch.lengths.tolist() * 2
    assert twice.cu_seqlens.dtype == torch.int32 and twice.max_seqlen == batch.max_seqlen
    for name in ("input_ids", "token_type_ids", "position_ids", "is_special", "sentence_ids"):
        assert torch.equal(getattr(twice, name), torch.cat([getattr(batch, name)] * 2)), name
    assert torch.equal(twice.token_sentence, torch.cat([batch.token_sentence, batch.token_sentence + len(sentences)]))

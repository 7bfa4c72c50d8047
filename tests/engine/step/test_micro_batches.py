"""A batch in pieces gives what the whole batch gives, in the memory of a piece."""

from dataclasses import replace

import pytest
import torch

from fastadv.engine.step import micro_batch
from fastadv.objectives.sentences.rtd import Corrupted

RTD = {"objective_options": {"rtd_generator": "unigram", "weight_rtd": 0.5}}
CASES = {
    "simcse": {"objective": "simcse"},
    "simcse-bn": {"objective": "simcse", "objective_options": {"head": "bn_mlp"}},
    "uscal-fgm": {"objective": "uscal", "method": "fgm"},
    "uscal-fgsm": {"objective": "uscal", "method": "fgsm"},
    "exact": {},
    "exact-l2": {"norm": "l2", "sigma": 0.0, "use_eta": False},
    "separate": {"gradient": "separate", "num_pgd_steps": 1},
    "adaptive": {"reuse": "adaptive", "agreement": 0.5},
    "mean": {"pooling": "mean"},
    "first-last": {"pooling": "first_last"},
    "generic": {"path": "generic"},
    "word": {"perturb_at": "word"},
    "spare-special": {"perturb_special_tokens": False},
    "joint": {"joint_views": True},
    "rtd": RTD,
}


def corrupt_some(batch):
    """Replaces tokens by what they are, so that no random number decides."""
    input_ids = torch.where(batch.is_special | (batch.input_ids % 3 != 0), batch.input_ids, batch.input_ids - 1)
    return Corrupted(input_ids, input_ids != batch.input_ids)


def outcome(recorded, batch, seed=7):
    """Loss, gradients, metrics and what the eta table holds after the step."""
    step = recorded.step
    if step.detection is not None:
        step.detection.corrupt = corrupt_some
    torch.manual_seed(seed)
    loss, grads = recorded.run(batch)
    step.commit()
    return loss, grads, dict(step.metrics), step.eta_table and step.eta_table.table


def assert_close(name, ours, theirs):
    """To rounding, with the absolute floor that key biases need, whose true gradient is 0."""
    tolerance = 1e-12 if theirs.dtype == torch.float64 else 2e-7
    assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max()), name


def assert_equal_outcomes(ours, theirs):
    assert_close("loss", ours[0], theirs[0])
    assert ours[1].keys() == theirs[1].keys()
    for name, grad in theirs[1].items():
        assert_close(name, ours[1][name], grad)
    assert ours[2].keys() == theirs[2].keys()
    for name, value in theirs[2].items():
        assert_close(name, ours[2][name], value)
    if theirs[3] is not None:
        assert_close("eta table", ours[3], theirs[3])


def test_the_parts_of_a_batch_are_its_sentences(tiny_encoder, sentences):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences, labels=range(len(sentences)))
    batch = replace(batch, positive=encoder.pack(sentences[::-1]))
    for num_parts in range(1, len(sentences) + 1):
        parts = batch.split(num_parts)
        assert sum(part.num_sentences for part in parts) == len(sentences)
        assert max(part.num_sentences for part in parts) - min(part.num_sentences for part in parts) <= 1
        for name in ("input_ids", "position_ids", "is_special", "sentence_ids", "labels", "lengths"):
            joined = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(joined, getattr(batch, name)), name
        assert torch.equal(torch.cat([part.positive.input_ids for part in parts]), batch.positive.input_ids)
        assert all(part.max_seqlen == part.lengths.max() and part.cu_seqlens[0] == 0 for part in parts)
    with pytest.raises(ValueError, match="6 parts" if len(sentences) == 5 else "parts"):
        batch.split(len(sentences) + 1)


@pytest.mark.parametrize("case", CASES)
def test_pieces_equal_the_whole_in_float64(make_step, sentences, case):
    """Pieces of one sentence, whatever the case; and of two or three, which is the same to most cases."""
    outcomes = []
    for size in (None, 1, 2 + list(CASES).index(case) % 2):
        recorded = make_step(micro_batch_size=size, **CASES[case])
        outcomes.append(outcome(recorded, recorded.step.encoder.pack(sentences)))
    for pieces in outcomes[1:]:
        assert_equal_outcomes(pieces, outcomes[0])


def test_given_positives_and_hard_negatives_pass_in_pieces_too(make_step, sentences):
    outcomes = []
    for size in (None, 2):
        recorded = make_step(micro_batch_size=size)
        pack = recorded.step.encoder.pack
        batch = replace(pack(sentences), positive=pack(sentences[::-1]), hard_negative=pack(sentences[1:] + ["never"]))
        outcomes.append(outcome(recorded, batch))
    assert_equal_outcomes(outcomes[1], outcomes[0])


def test_an_adaptive_step_after_the_probe_is_equal_too(make_step, sentences):
    outcomes = []
    for size in (None, 2):
        recorded = make_step(micro_batch_size=size, reuse="adaptive", agreement=0.5, num_steps=4)
        batch = recorded.step.encoder.pack(sentences)
        outcomes.append([outcome(recorded, batch), outcome(recorded, batch, seed=8)])
    for ours, theirs in zip(*reversed(outcomes), strict=True):
        assert_equal_outcomes(ours, theirs)


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("case", ["uscal-fgm", "exact", "adaptive", "generic", "word", "joint", "rtd"])
def test_what_runs_again_has_the_masks_and_weights_it_had(make_step, sentences, monkeypatch, case, compute_dtype):
    """Against the same passes with their graphs kept: nothing is run again there."""
    outcomes = []
    for keeps_graphs in (False, True):
        recorded = make_step(
            micro_batch_size=2, dropout=0.2, dtype=torch.float32, compute_dtype=compute_dtype, **CASES[case]
        )
        if keeps_graphs:
            monkeypatch.setattr(micro_batch, "recomputed", lambda function, *args, inside: function(*args))
        outcomes.append(outcome(recorded, recorded.step.encoder.pack(sentences)))
    (loss, grads, _, _), (kept_loss, kept_grads, _, _) = outcomes
    assert torch.equal(loss, kept_loss)
    for name, grad in kept_grads.items():
        # Sums over passes may come in another order, in bfloat16 before the cast.
        tolerance = 1e-5 if compute_dtype is None else 2**-7
        assert (grads[name] - grad).norm() <= tolerance * max(grad.norm(), 1e-3), name


def test_a_sentence_without_a_finite_gradient_is_named_by_its_row_in_the_batch(make_step, sentences):
    from fastadv.perturbation import NonFiniteGradient

    recorded = make_step(micro_batch_size=2)
    step = recorded.step
    batch = step.encoder.pack(sentences)
    encode = step.encoder.encode

    def poisoned(x, given, dropout=None):
        pooled = encode(x, given, dropout)
        factors = torch.ones_like(pooled[:, :1])
        if dropout is False:
            factors[given.sentence_ids == batch.sentence_ids[3]] = float("nan")
        return pooled * factors

    step.encoder.encode = poisoned
    with pytest.raises(NonFiniteGradient) as caught:
        step(batch)
    assert caught.value.sentences == (batch.sentence_ids == batch.sentence_ids[3]).nonzero().flatten().tolist()


def test_a_skipped_batch_in_pieces_writes_nothing(make_step, sentences):
    recorded = make_step(micro_batch_size=1)
    step = recorded.step
    batch = step.encoder.pack(sentences)
    kept = step.eta_table.table.clone()
    step(batch)
    step.discard()
    step.commit()
    assert torch.equal(step.eta_table.table, kept)


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"path": "generic"}, {"micro_batch_size": 2}, {"objective": "uscal"}, RTD])
def test_checkpointed_activations_give_equal_gradients(make_step, sentences, options, compute_dtype):
    options = {"method": "fgm", **options} if options.get("objective") == "uscal" else options
    outcomes = []
    for checkpoint_activations in (False, True):
        recorded = make_step(
            dropout=0.2,
            dtype=torch.float32,
            checkpoint_activations=checkpoint_activations,
            compute_dtype=compute_dtype,
            **options,
        )
        outcomes.append(outcome(recorded, recorded.step.encoder.pack(sentences)))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    for name, grad in outcomes[0][1].items():
        assert torch.equal(outcomes[1][1][name], grad), name


def test_a_model_that_cannot_checkpoint_says_so(tiny_encoder):
    from fastadv.errors import UserError

    encoder = tiny_encoder(path="generic")
    type_ = type(encoder.hf)
    encoder.hf.supports_gradient_checkpointing = False
    with pytest.raises(UserError, match=f"{type_.__name__} does not support checkpoint_activations"):
        encoder._model.checkpoint_activations()


def test_checkpointed_activations_are_fewer(make_step, sentences):
    from bench.micro_batches import peak_bytes

    peaks = []
    for checkpoint_activations in (False, True):
        step = make_step(checkpoint_activations=checkpoint_activations, dropout=0.1).step
        peaks.append(peak_bytes(step, step.encoder.pack(sentences * 8)))
    assert peaks[1] < 0.8 * peaks[0]


def test_a_piece_is_searched_around_the_embeddings_of_its_clean_pass(make_step, sentences):
    """X is embedded anew for the search and for z_adv, under the mask it had for z."""
    recorded = make_step(micro_batch_size=2, dropout=0.2, use_eta=False, sigma=0.0, num_steps=1)
    step, encode, given = recorded.step, recorded.step.encoder.encode, []
    step.encoder.encode = lambda x, *rest, **options: given.append(x.detach()) or encode(x, *rest, **options)
    batch = step.encoder.pack(sentences)
    step(batch)
    count = len(recorded.found)
    assert count == -(-len(sentences) // 2)
    # z and z+ of every piece, then the one inner step and z_adv of every piece.
    clean, positive = given[: 2 * count : 2], given[1 : 2 * count : 2]
    searched, adversarial = given[2 * count :: 2], given[2 * count + 1 :: 2]
    for i, found in enumerate(recorded.found):
        assert torch.equal(searched[i], clean[i]) and not torch.equal(positive[i], clean[i])
        assert torch.equal(adversarial[i], clean[i] + found.delta)

"""Replaced token detection: what is masked and refilled, what the discriminator sees, and what is measured."""

import pytest
import torch
import torch.nn.functional as F

from fastadv.data.packing import PackedBatch
from fastadv.objectives.needs import DetectionOptions
from fastadv.objectives.sentences.rtd import ReplacedTokenDetection, build_detection, choose_masked
from tests.engine.step.dispatch import RefuseDataDependence

RTD = {"rtd_generator": "unigram", "weight_rtd": 0.5}


def detection_of(encoder, **options):
    counts = torch.ones(encoder.vocab_size, dtype=torch.int64)
    made = build_detection(DetectionOptions(**{"generator": "unigram", **options}), encoder, lambda: counts)
    return made.to(encoder.dtype)


class Scripted:
    """A generator that fills in what it was told to."""

    def __init__(self, ids):
        self.ids = ids

    def fill(self, batch, masked, how):
        return self.ids


def test_masks_are_independent_and_spare_special_tokens():
    lengths = [22] * 2000
    batch = PackedBatch.from_token_lists(
        [[7] * n for n in lengths], [[True] + [False] * (n - 2) + [True] for n in lengths]
    )
    masked = choose_masked(batch, 0.3)
    assert not masked[batch.is_special].any()
    drawn = masked[~batch.is_special].view(2000, 20).double()
    # Standard deviations: 0.0023 of the mean, 0.022 of the correlation of neighbours; five of them.
    assert abs(drawn.mean() - 0.3) < 0.0115
    assert abs(torch.corrcoef(drawn[:, :2].T)[0, 1]) < 0.11


def test_one_token_a_sentence_is_masked_where_none_was_drawn():
    batch = PackedBatch.from_token_lists(
        [[1, 5, 6, 7, 2], [1, 8, 2], [1, 2]], [[True, False, False, False, True], [True, False, True], [True, True]]
    )
    chosen = torch.zeros(batch.num_tokens)
    for _ in range(300):
        masked = choose_masked(batch, 0.0)
        assert masked[:5].sum() == 1 and masked[5:8].tolist() == [False, True, False] and not masked[8:].any()
        chosen += masked
    # Each of the first sentence's three words about a hundred times; standard deviation 8.
    assert (chosen[1:4] - 100).abs().max() < 40


def test_labels_are_of_replaced_tokens_and_others_stay(tiny_encoder, sentences):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    detection = detection_of(encoder)
    # Every second token would be refilled by itself.
    ids = torch.where(torch.arange(batch.num_tokens) % 2 == 0, batch.input_ids, batch.input_ids + 1)
    detection._generator = Scripted(ids)
    torch.manual_seed(3)
    corrupted = detection.corrupt(batch)
    torch.manual_seed(3)
    masked = choose_masked(batch, 0.3)
    assert torch.equal(corrupted.input_ids, torch.where(masked, ids, batch.input_ids))
    assert torch.equal(corrupted.replaced, masked & (ids != batch.input_ids))
    assert 0 < corrupted.replaced.sum() < masked.sum()


@pytest.mark.parametrize("path", ["packed", "generic"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_is_cross_entropy_of_states_made_by_hugging_face(tiny_encoder, sentences, path, reduction):
    encoder = tiny_encoder(dropout=0.0, path=path)
    batch = encoder.pack(sentences)
    detection = detection_of(encoder, reduction=reduction).train()
    eta, h = 0.1 * torch.randn(batch.num_tokens, 32, dtype=torch.float64), torch.randn(7, 32, dtype=torch.float64)
    torch.manual_seed(3)
    loss, metrics = detection(batch, h, None, eta)
    torch.manual_seed(3)
    corrupted = detection.corrupt(batch)
    hf, losses, num_right = detection.discriminator.hf, [], 0
    for row, (ids, labels, shift) in enumerate(
        zip(
            *(part.split(batch.lengths.tolist()) for part in (corrupted.input_ids, corrupted.replaced, eta)),
            strict=True,
        )
    ):
        states = hf.embeddings(input_ids=ids[None]) + shift
        states = torch.cat([h[None, row : row + 1], states[:, 1:]], dim=1)
        logits = detection.head(hf.encoder(states).last_hidden_state[0])
        losses.append(F.cross_entropy(logits, labels.long(), reduction="sum"))
        num_right += (logits.argmax(1) == labels).sum()
    expected = sum(losses) / (batch.num_tokens if reduction == "mean" else 1)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    assert metrics["rtd_accuracy"] == pytest.approx(float(num_right / batch.num_tokens))
    assert metrics["rtd_replaced_share"] == pytest.approx(float(corrupted.replaced.double().mean()))


def test_a_batch_where_nothing_was_replaced_has_a_finite_loss_and_its_accuracy(make_step, sentences):
    recorded = make_step(objective_options=RTD)
    batch = recorded.step.encoder.pack(sentences)
    detection = recorded.step.detection
    detection._generator = Scripted(batch.input_ids)
    seen, logits = [], detection.logits
    detection.logits = lambda *arguments: seen.append(logits(*arguments)) or seen[-1]
    loss, grads = recorded.run(batch)
    metrics = recorded.step.metrics
    assert loss.isfinite() and all(grad.isfinite().all() for grad in grads.values())
    assert metrics["loss_rtd"].isfinite() and metrics["rtd_replaced_share"] == 0
    called_original = (seen[0][:, 0] > seen[0][:, 1]).double().mean()
    assert metrics["rtd_accuracy"] == pytest.approx(float(called_original))


def test_the_device_is_asked_nothing_where_no_model_refills(tiny_encoder, sentences):
    """Of masks, refilling, loss and metrics; with a masked language model the number of masked tokens alone is."""
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    detection = detection_of(encoder).train()
    h, eta = torch.zeros(7, 32, dtype=torch.float64), torch.zeros(batch.num_tokens, 32, dtype=torch.float64)
    with RefuseDataDependence():
        loss, metrics = detection(batch, h, None, eta)
    assert loss.isfinite() and metrics.keys() == {"rtd_replaced_share", "rtd_accuracy"}


def test_sentences_of_special_tokens_alone_are_left_as_they_are(tiny_encoder):
    encoder = tiny_encoder()
    batch = encoder.pack(["", ""])
    loss, metrics = detection_of(encoder)(batch, torch.zeros(2, 32, dtype=torch.float64), None, None)
    assert loss.isfinite() and metrics["rtd_replaced_share"] == 0


@pytest.mark.parametrize("of", ["h", "z"])
def test_the_gradient_reaches_the_encoder_through_the_vector_alone(make_step, sentences, of):
    grads = {}
    for weight in (0.25, 0.5):
        recorded = make_step(objective_options={**RTD, "weight_rtd": weight, "rtd_input": of})
        torch.manual_seed(5)
        _, grads[weight] = recorded.run(recorded.step.encoder.pack(sentences))
    moved = [name for name, grad in grads[0.5].items() if not torch.equal(grad, grads[0.25][name])]
    assert "encoder.hf.encoder.layer.0.attention.self.query.weight" in moved
    assert ("objective.head.0.weight" in moved) == (of == "z")
    assert "detection.head.weight" in moved and "detection.discriminator.hf.embeddings.word_embeddings.weight" in moved


def test_eta_is_given_to_the_discriminator(make_step, sentences):
    recorded = make_step(objective_options=RTD)
    seen = []
    logits = recorded.step.detection.logits
    recorded.step.detection.logits = lambda batch, vectors, eta: seen.append(eta) or logits(batch, vectors, eta)
    recorded.run(recorded.step.encoder.pack(sentences))
    assert seen[0].any() and torch.equal(seen[0], recorded.found[0].eta)


def test_the_discriminator_starts_as_the_encoder_and_has_its_own_parameters(make_step):
    step = make_step(objective_options=RTD).step
    ours, theirs = step.encoder.state_dict(), step.detection.discriminator.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(
        torch.equal(ours[name], theirs[name]) and ours[name].data_ptr() != theirs[name].data_ptr() for name in ours
    )
    assert step.detection.discriminator.training


@pytest.mark.parametrize(
    "options", [{"weight_rtd": 0.0, "rtd_generator": "unigram"}, {"rtd_generator": "none"}], ids=str
)
def test_is_not_run_without_weight_or_generator(make_step, sentences, options):
    plain, recorded = make_step(), make_step(objective_options=options)
    assert recorded.step.detection is None
    batch = plain.step.encoder.pack(sentences)
    losses = []
    for each in (plain, recorded):
        torch.manual_seed(5)
        losses.append(each.run(batch)[0])
    assert torch.equal(*losses) and "loss_rtd" not in recorded.step.metrics


def test_the_other_terms_and_the_search_do_not_notice(make_step, sentences):
    """The detection draws its random numbers last."""
    found = []
    for options in ({}, RTD):
        # Without a start of eta drawn after the detection's head.
        recorded = make_step(objective_options=options, dropout=0.2, sigma=0.0)
        torch.manual_seed(5)
        recorded.run(recorded.step.encoder.pack(sentences))
        found.append((recorded.found[0].delta, recorded.step.metrics["loss_contrastive"]))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("path", ["packed", "generic"])
@pytest.mark.parametrize("kind", ["albert", "electra"])
def test_position_zero_is_replaced_behind_the_mapping_of_narrow_embeddings(tiny_bert_dir, kind, path):
    """ALBERT and ELECTRA with E = 16 and D = 32: h stands behind what maps E to D."""
    import transformers

    from fastadv.encoder import Encoder

    base = Encoder.from_pretrained(str(tiny_bert_dir))
    classes = {
        "albert": (transformers.AlbertConfig, transformers.AlbertModel),
        "electra": (transformers.ElectraConfig, transformers.ElectraModel),
    }
    config = classes[kind][0](
        vocab_size=base.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    encoder = Encoder(classes[kind][1](config).double(), base.tokenizer, path=path, dropout=0.0)
    detection = detection_of(encoder).train()
    batch = encoder.pack(["the film was slow .", "never"])
    eta, h = 0.1 * torch.randn(batch.num_tokens, 16, dtype=torch.float64), torch.randn(2, 32, dtype=torch.float64)
    logits = detection.logits(batch, h, eta)
    hf = detection.discriminator.hf
    expected = []
    parts = [part.split(batch.lengths.tolist()) for part in (batch.input_ids, eta)]
    for row, (ids, shift) in enumerate(zip(*parts, strict=True)):
        x = hf.embeddings(input_ids=ids[None]) + shift
        mapping = hf.encoder.embedding_hidden_mapping_in if kind == "albert" else hf.embeddings_project
        first = torch.cat([h[None, row : row + 1], mapping(x)[:, 1:]], dim=1)
        if kind == "albert":
            # Its encoder maps by itself.
            hf.encoder.embedding_hidden_mapping_in = torch.nn.Identity()
            last = hf.encoder(first, head_mask=[None] * 2).last_hidden_state
            hf.encoder.embedding_hidden_mapping_in = mapping
        else:
            last = hf.encoder(first).last_hidden_state
        expected.append(detection.head(last[0]))
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-10, atol=1e-12)


def test_generator_is_no_part_of_the_module_tree(make_step):
    step = make_step(objective_options=RTD).step
    assert isinstance(step.detection, ReplacedTokenDetection)
    assert not any("generator" in name for name, _ in step.named_modules())

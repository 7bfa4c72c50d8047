"""Laws of the step with views of texts: pieces change nothing, and z_text stands in the place of z+."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fastadv.config.text_search import TextSearchConfig
from fastadv.data.packing import PackedBatch
from fastadv.engine.step import text_search
from fastadv.engine.step.text_search import TextSearch
from fastadv.objectives.classes.smart import symmetric_kl
from fastadv.objectives.sentences.simcse import SimCSE
from tests.engine.step.test_micro_batches import assert_equal_outcomes, outcome

WORDS = ("film", "plot", "actor", "good", "slow", "never", "the", "music", "story", "was")
INSTEAD, BESIDE = {"text_positive": "instead"}, {"text_positive": "beside", "weight_text": 0.5}
CASES = {
    "simcse": ("simcse", INSTEAD, {}),
    "simcse, beside and anchor": ("simcse", BESIDE, {}),
    "simcse, flip": ("simcse", {**INSTEAD, "weight_flip": 0.3, "flip_margin": 0.5}, {}),
    "simcse, keep": ("simcse", {**INSTEAD, "weight_keep": 0.5}, {}),
    "robustsentembed": ("robustsentembed", INSTEAD, {}),
    "robustsentembed, beside": ("robustsentembed", BESIDE, {}),
    "uscal": ("uscal", INSTEAD, {"method": "fgm"}),
    "text_adversarial": ("text_adversarial", {}, {}),
    "text_adversarial and pgd": ("text_adversarial", {"weight_adversarial": 0.5}, {"method": "pgd", "num_steps": 2}),
}
FREE = ("text_adversarial", {"weight_adversarial": 1.0}, {"method": "freelb", "num_steps": 3})


def with_proposals(encoder, sentences, num_proposals=3):
    """The sentences, and copies with a word more; the second sentence has none, and the third one flip."""
    batch = encoder.pack(sentences, labels=[i % 5 for i in range(len(sentences))])
    proposals = {}
    for side, shift in (("text", 0), ("flip", 4)):
        drawn = []
        for k in range(num_proposals):
            texts = [f"{s} {WORDS[(3 * i + k + shift) % len(WORDS)]}" for i, s in enumerate(sentences)]
            is_present = torch.tensor([i != 1 and not (i == 2 and k and side == "flip") for i in range(len(texts))])
            filled = [t if there else s for t, s, there in zip(texts, sentences, is_present)]
            drawn.append(replace(encoder.pack(filled), is_present=is_present))
        proposals[side] = drawn
    return replace(batch, proposals=proposals)


def run(make_step, case, sentences, seed=7, text=None, **options):
    objective, given, perturbation = case
    recorded = make_step(objective, given, **perturbation, **options)
    if text is not None:
        recorded.step.text_search = TextSearch(text, recorded.step.passes, recorded.step.objective, recorded.step.plan)
    return recorded, outcome(recorded, with_proposals(recorded.step.encoder, sentences), seed)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 3])
def test_pieces_give_what_the_whole_batch_gives(make_step, sentences, case, size):
    _, whole = run(make_step, CASES[case], sentences)
    _, pieces = run(make_step, CASES[case], sentences, micro_batch_size=size)
    assert_equal_outcomes(pieces, whole)
    assert whole[2]["num_unedited"] == 1 and whole[2]["text_gain"] > 0


@pytest.mark.parametrize("path", ["packed", "generic"])
def test_checkpointed_activations_change_nothing(make_step, sentences, path):
    _, kept = run(make_step, CASES["simcse, flip"], sentences, path=path)
    _, again = run(make_step, CASES["simcse, flip"], sentences, path=path, checkpoint_activations=True)
    assert_equal_outcomes(again, kept)


def test_the_generic_path_agrees(make_step, sentences):
    outcomes = [run(make_step, CASES["robustsentembed"], sentences, path=path)[1] for path in ("packed", "generic")]
    for ours, theirs in zip(outcomes[0][:1], outcomes[1][:1]):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_of_equal_proposals_the_first_is_taken():
    """Columns: a tie, a tie with one that is missing, no number, none there, all equal."""
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([[1.0, 3.0, nan, 5.0, -inf], [2.0, 3.0, 0.5, 6.0, -inf], [2.0, 3.0, nan, 7.0, -inf]])
    is_present = torch.tensor([[1, 0, 1, 0, 1], [1, 1, 1, 0, 1], [1, 1, 1, 0, 1]], dtype=torch.bool)
    assert text_search.first_highest(values, is_present).tolist() == [1, 1, 1, 0, 0]


def test_z_text_takes_the_place_of_the_positive(make_step, sentences):
    """The step equals one whose given positives are the texts that were chosen."""
    recorded, (loss, grads, *_) = run(make_step, CASES["robustsentembed"], sentences)
    chosen = {}
    worst = recorded.step.text_search._worst

    def noted(*arguments):
        pick, gain = worst(*arguments)
        chosen["text"] = PackedBatch.chosen(*pick, pick.index.tolist())
        return pick, gain

    recorded.step.text_search._worst = noted
    batch = with_proposals(recorded.step.encoder, sentences)
    torch.manual_seed(7)
    recorded.run(batch)
    plain = make_step("robustsentembed")
    torch.manual_seed(7)
    loss_given, grads_given = plain.run(replace(batch, proposals={}, positive=chosen["text"]))
    torch.testing.assert_close(loss, loss_given)
    for name, grad in grads_given.items():
        torch.testing.assert_close(grads[name], grad)


def test_a_lone_proposal_is_random_s(make_step, sentences):
    """K = 1 compares nothing: `random` on many proposals takes the first of them."""
    encodes = []
    for text in (TextSearchConfig(choose="random"), TextSearchConfig(choose="worst")):
        recorded = make_step("simcse", INSTEAD)
        step = recorded.step
        step.text_search = TextSearch(text, step.passes, step.objective, step.plan)
        batch = with_proposals(step.encoder, sentences, num_proposals=1)
        encodes.append(outcome(recorded, batch))
        assert "text_gain" not in step.metrics
    assert_equal_outcomes(*encodes)


def test_proposals_are_compared_without_a_graph_or_dropout(make_step, sentences):
    recorded = make_step("simcse", INSTEAD, dropout=0.5)
    step, seen = recorded.step, []
    encode = step.encoder.encode
    step.encoder.encode = lambda x, batch, dropout=None: _noted(seen, encode(x, batch, dropout), dropout)
    batch = with_proposals(step.encoder, sentences)
    recorded.run(batch)
    assert [has_graph for has_graph, _ in seen].count(True) == 2
    assert all(dropout is False for has_graph, dropout in seen if not has_graph)


def test_as_many_proposals_are_compared_at_once_as_there_are_layers(make_step, sentences, monkeypatch):
    """Where ranks fetch parameters together, as on a GPU; the choice is that of smaller passes."""
    outcomes, sizes = [], []
    for is_cut_up in (False, True):
        recorded = make_step("simcse", INSTEAD)
        step = recorded.step
        config = TextSearchConfig(precision="fp32")
        step.text_search = TextSearch(config, step.passes, step.objective, step.plan)
        monkeypatch.setattr(text_search, "is_cut_up", lambda encoder, is_cut_up=is_cut_up: is_cut_up)
        encode = step.encoder.encode

        def noted(x, batch, dropout=None, encode=encode):
            if dropout is False:
                sizes.append(batch.num_sentences)
            return encode(x, batch, dropout)

        step.encoder.encode = noted
        sizes.clear()
        torch.manual_seed(7)
        outcomes.append(recorded.run(with_proposals(step.encoder, sentences, num_proposals=5)))
    assert step.encoder.num_layers == 2 and sizes == [2 * len(sentences), 2 * len(sentences), len(sentences)]
    torch.testing.assert_close(outcomes[0], outcomes[1])


def _noted(seen, pooled, dropout):
    seen.append((pooled.requires_grad, dropout))
    return pooled


def test_no_other_row_changes_a_choice(make_step, sentences):
    """The choice of a row depends on its own proposals: other rows' proposals may be anything."""
    recorded, _ = run(make_step, CASES["text_adversarial"], sentences)
    step = recorded.step
    batch = with_proposals(step.encoder, sentences)
    step(batch)
    before = step.text_search
    logits = []
    for shuffled in (batch, replace(batch, proposals={"text": batch.proposals["text"][::-1]})):
        chosen, gain = before._worst(shuffled, None, shuffled.proposals["text"])
        logits.append((chosen, gain))
    (first, gain), (second, gain_again) = logits
    texts = [PackedBatch.chosen(*pick, pick.index.tolist()) for pick in (first, second)]
    assert torch.equal(texts[0].input_ids, texts[1].input_ids)
    torch.testing.assert_close(gain, gain_again)


def test_text_adversarial_is_its_formula(make_step, sentences):
    recorded, (loss, grads, metrics, _) = run(make_step, CASES["text_adversarial"], sentences)
    step = recorded.step
    batch = with_proposals(step.encoder, sentences)
    with torch.no_grad():
        of_k = [step.objective.classifier(step.encoder(each)) for each in batch.proposals["text"]]
        losses = torch.stack([F.cross_entropy(each, batch.labels, reduction="none") for each in of_k])
        is_present = torch.stack([each.is_present for each in batch.proposals["text"]])
        best = losses.masked_fill(~is_present, -1).argmax(0)
        logits = step.objective.classifier(step.encoder(batch))
        edited = torch.stack(of_k)[best, torch.arange(len(best))]
        clean, text = F.cross_entropy(logits, batch.labels), F.cross_entropy(edited, batch.labels)
        kl = symmetric_kl(logits, edited).mean()
    torch.testing.assert_close(loss, clean + text + kl)
    torch.testing.assert_close(metrics["loss_kl"], kl)


def test_freelb_on_top_adds_the_mean_of_its_passes(make_step, sentences):
    """Terms of the text count once, and their gradients arrive: those of the sum of both losses."""
    _, both = run(make_step, FREE, sentences)
    _, text = run(make_step, CASES["text_adversarial"], sentences)
    free = make_step("adversarial_training", {"weight_clean": 0.0}, method="freelb", num_steps=3)
    passes = outcome(free, with_proposals(free.step.encoder, sentences))
    torch.testing.assert_close(both[0], text[0] + passes[0])
    for name, grad in both[1].items():
        torch.testing.assert_close(grad, text[1][name] + passes[1][name], rtol=1e-9, atol=1e-12)


def test_a_batch_without_proposals_is_an_error(make_step, sentences):
    recorded = make_step("simcse", INSTEAD)
    with pytest.raises(ValueError, match="no proposals 'text'"):
        recorded.step(recorded.step.encoder.pack(sentences))


def test_an_anchor_needs_a_positive_of_its_own():
    from fastadv.errors import UserError

    with pytest.raises(
        UserError, match="weight_text = 0.5: expected 0 where objective_options.text_positive is instead"
    ):
        SimCSE(8, text_positive="instead", weight_text=0.5)


def test_bfloat16_compares_on_copies(make_step, sentences):
    """Passes that compare compute in bfloat16, the views do not; the weights are as they were."""
    text = TextSearchConfig(precision="bf16")
    recorded, (loss, *_) = run(make_step, CASES["simcse"], sentences, text=text, dtype=torch.float32)
    assert loss.dtype == torch.float32 and recorded.step.encoder.dtype == torch.float32
    seen, step = [], recorded.step
    model = step.encoder._model.first_and_last
    step.encoder._model.first_and_last = lambda *args, **kwargs: (seen.append(kwargs["dtype"]), model(*args, **kwargs))[
        1
    ]
    step(with_proposals(step.encoder, sentences))
    assert seen.count(torch.bfloat16) >= 1 and seen.count(torch.float32) == 2


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("choose", ["worst", "random"])
def test_the_device_is_asked_once(make_step, sentences, monkeypatch, size, choose):
    """Whatever the number of pieces and sides; `random` asks nothing."""
    _, given, _ = CASES["simcse, flip"]
    recorded = make_step("simcse", given, micro_batch_size=size)
    step, asked = recorded.step, []
    step.text_search = TextSearch(TextSearchConfig(choose=choose), step.passes, step.objective, step.plan)
    batch = with_proposals(step.encoder, sentences, 1 if choose == "random" else 3)
    for name in ("tolist", "item", "__bool__", "__int__", "__float__"):
        method = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, *a, m=method, n=name: (asked.append(n), m(x, *a))[1])
    choose_texts, view = step.text_search._chosen, step.text_search._view
    before, seen = [], []
    step.text_search._chosen = lambda *args: (before.append(len(asked)), choose_texts(*args))[1]
    step.text_search._view = lambda *args: (seen.append(len(asked)), view(*args))[1]
    step(batch)
    assert seen[0] - before[0] == (choose == "worst")

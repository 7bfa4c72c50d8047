"""Steps of the text-level systems on shares of a batch, as ranks compute them, and on the whole one, as one does."""

from dataclasses import replace

import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.data.batching import rank_rows
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts, Views
from tests.ranks.cases.steps import SENTENCES

LABELS = (3, 0, 4, 1, 2, 2, 0)
NAMES = tuple("abcde")
NUM_ROWS = len(LABELS)
TEXTS = {
    "fickle": (
        "the movie was not quite good .",
        "a terrific story !",
        "it is boring",
        "the actor was good , but the plot was slow and the end was almost awful .",
        None,
        "adore this camera and that music .",
        "a great tale !",
    ),
    "obstinate": (
        "the film was not very bad .",
        None,
        "it is sharp",
        "the actor was great , but the plot was fast and the ending was almost terrible .",
        "always",
        "hate this camera and this music .",
        None,
    ),
    "adversarial": (None, "a wonderfl story !", None, None, "neever", "love this cam era and music .", "a story !"),
}
# Of the first rank of two, which has three rows, all texts are missing; or of the other.
SIDED = (False, False, False, True, True, True, True)
OTHER_SIDE = tuple(not is_there for is_there in SIDED)
EVERYWHERE, NOWHERE = NUM_ROWS * (True,), NUM_ROWS * (False,)
_SOFT = {"targets": "soft", "victim": "by rule"}
CASES = {
    "safer": ("safer", {}, EVERYWHERE),
    "safer, sided": ("safer", {}, SIDED),
    "ada": ("ada", {"weight_adversarial": 0.7}, EVERYWHERE),
    "ada, soft": ("ada", _SOFT, SIDED),
    "base_adv": ("base_adv", {}, EVERYWHERE),
    "base_adv, other side": ("base_adv", {}, OTHER_SIDE),
    "base_adv, soft": ("base_adv", _SOFT, SIDED),
    "base_adv, nothing": ("base_adv", {}, NOWHERE),
    "a2t": ("a2t", {}, OTHER_SIDE),
    "pairwise": ("bat_pairwise", {"obstinate_labels": ["b", "c", "d"]}, EVERYWHERE),
    "pairwise, sided": ("bat_pairwise", {"distance_of": "mean"}, SIDED),
    "triplet": ("bat_triplet", {"distance_of": "max"}, EVERYWHERE),
    "triplet, other side": ("bat_triplet", {"obstinate_labels": ["a", "e"]}, OTHER_SIDE),
    "pairwise, in pieces": ("bat_pairwise", {"distance_of": "max"}, EVERYWHERE),
}
# At ZeRO stage 0 every case is run, at 1 to 3 these.
CUT_UP = ("safer, sided", "base_adv, other side", "ada, soft", "pairwise", "pairwise, in pieces", "triplet")


def by_rule(batch):
    """Probabilities (B, C) of a victim that looks at token ids."""
    sums = torch.zeros(batch.num_sentences).index_add(0, batch.token_sentence, batch.input_ids.float())
    return torch.stack([torch.sin(sums + c) for c in range(len(NAMES))], dim=1).softmax(1)


def make_step(folder: str, case: str, dtype=torch.float32) -> Step:
    """The step of ``case`` on the tiny encoder at ``folder``, from the same weights each time."""
    name, options, _ = CASES[case]
    encoder = Encoder.from_pretrained(folder, dtype=dtype, dropout=0.0)
    torch.manual_seed(1)
    head = ClassificationHead(encoder.hidden_size, len(NAMES))
    objective = resolve_objective(name)(encoder.hidden_size, head, **options).to(dtype)
    objective.begin(RunFacts(NUM_ROWS, 1, 10, label_names=NAMES))
    if objective.needs.victim is not None:
        objective.victim_probabilities = by_rule
    size = 2 if "pieces" in case else None
    return Step(encoder, objective, PerturbationConfig(), micro_batch_size=size).train()


def share_of(step: Step, case: str, rank: int, num_ranks: int):
    """The rows of a rank; in a missing text's place the sentence stands."""
    rows, encoder, is_there = rank_rows(NUM_ROWS, rank, num_ranks), step.encoder, CASES[case][2]
    variants = {}
    for name in step.objective.needs.variants:
        texts = [text if there else None for text, there in zip(TEXTS[name], is_there, strict=True)]
        filled = [sentence if text is None else text for text, sentence in zip(texts, SENTENCES)]
        is_present = torch.tensor([text is not None for text in texts[rows]])
        variants[name] = replace(encoder.pack(filled[rows]), is_present=is_present)
    return replace(encoder.pack(SENTENCES[:NUM_ROWS][rows], LABELS[rows]), variants=variants)


def make_ready(folder: str, case: str, rank: int, num_ranks: int, dtype=torch.float32):
    step = make_step(folder, case, dtype)
    return step, share_of(step, case, rank, num_ranks)


def _own_rows_count(views, row_losses, is_counted):
    return torch.where(is_counted, row_losses, 0).sum() / is_counted.sum().clamp(min=1)


def _own_mean(views, row_losses):
    return row_losses.mean()


MUTANTS = {
    "a mean of the rank's own texts": ("pairwise, sided", Views, "masked_mean", _own_rows_count),
    "a mean of the rank's own attacked texts": ("base_adv, other side", Views, "masked_mean", _own_rows_count),
    "a mean of the rank's own rows": ("triplet", Views, "mean", _own_mean),
}

"""Steps with views of texts on shares of a batch, as ranks compute them, and on the whole one, as one process does."""

from dataclasses import replace

import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.config.text_search import TextSearchConfig
from fastadv.data.batching import rank_rows
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import Keys, Views
from fastadv.objectives.original import OriginalEncoder
from tests.ranks.cases.steps import LABELS, NUM_CLASSES, SENTENCES

NUM_PROPOSALS, NUM_ROWS = 3, 7
# Of the first rank of two all texts are missing.
SIDED = tuple(row >= NUM_ROWS // 2 for row in range(NUM_ROWS))
EVERYWHERE = NUM_ROWS * (True,)
_FLIP = {"weight_flip": 0.5, "flip_margin": 0.3}
# Rounding of a cosine is over temperature.
_WARM = {"temperature": 0.3}
_SEARCH = {"epsilon_relative": 0.2, "method": "pgd", "norm": "l2", "num_steps": 2, "alpha": 1.0, "sigma": 0.0}
CASES = {
    "instead": ("simcse", {"text_positive": "instead", **_WARM}, EVERYWHERE),
    "beside and anchor": ("simcse", {"text_positive": "beside", "weight_text": 0.5, **_WARM}, EVERYWHERE),
    "keep, sided": ("simcse", {"text_positive": "instead", "weight_keep": 0.5, **_WARM}, SIDED),
    "flip, sided": ("simcse", {"text_positive": "instead", **_FLIP, **_WARM}, SIDED),
    "with z_adv": ("robustsentembed", {"text_positive": "instead", "weight_adversarial": 0.5, **_WARM}, EVERYWHERE),
    "text_adversarial": ("text_adversarial", {}, SIDED),
    "with z_adv, in pieces": (
        "robustsentembed",
        {"text_positive": "instead", "weight_adversarial": 0.5, **_WARM},
        EVERYWHERE,
    ),
}
CUT_UP = tuple(CASES)


def make_step(folder: str, case: str, dtype=torch.float32) -> Step:
    """The step of ``case`` on the tiny encoder at ``folder``, from the same weights each time."""
    name, options, _ = CASES[case]
    encoder = Encoder.from_pretrained(folder, dtype=dtype, dropout=0.0)
    torch.manual_seed(1)
    kind, given = resolve_objective(name), (encoder.hidden_size,)
    if kind.needs.labels:
        given = (*given, ClassificationHead(encoder.hidden_size, NUM_CLASSES))
    objective = kind(*given, **options).to(dtype)
    if objective.needs.original:
        # As the encoder would be before training.
        objective.original_vectors = OriginalEncoder(Encoder.from_pretrained(folder, pooling="mean", dtype=dtype))
    text = TextSearchConfig(["typos"], NUM_PROPOSALS, precision="fp32")
    size = 2 if "pieces" in case else None
    return Step(encoder, objective, PerturbationConfig(**_SEARCH), micro_batch_size=size, text=text).train()


def share_of(step: Step, case: str, rank: int, num_ranks: int):
    """The rows of a rank with their proposals: copies that another sentence's words follow."""
    rows, encoder, is_there = rank_rows(NUM_ROWS, rank, num_ranks), step.encoder, CASES[case][2]
    proposals = {}
    for side, shift in (("text", 1), ("flip", 3)):
        drawn = []
        for k in range(NUM_PROPOSALS):
            others = [SENTENCES[(i * (k + 2) + shift) % len(SENTENCES)] for i in range(NUM_ROWS)]
            texts = [f"{s} {t}" if there else s for s, t, there in zip(SENTENCES[:NUM_ROWS], others, is_there)]
            drawn.append(replace(encoder.pack(texts[rows]), is_present=torch.tensor(is_there[rows])))
        proposals[side] = drawn
    return replace(encoder.pack(SENTENCES[:NUM_ROWS][rows], LABELS[:NUM_ROWS][rows]), proposals=proposals)


def make_ready(folder: str, case: str, rank: int, num_ranks: int, dtype=torch.float32):
    step = make_step(folder, case, dtype)
    return step, share_of(step, case, rank, num_ranks)


def _own_rows_count(views, row_losses, is_counted):
    return torch.where(is_counted, row_losses, 0).sum() / is_counted.sum().clamp(min=1)


def _own_mean(views, row_losses):
    return row_losses.mean()


def _first_rows(keys, row):
    return replace(keys, row_offset=row)


MUTANTS = {
    "a mean of the rank's own texts": ("flip, sided", Views, "masked_mean", _own_rows_count),
    "a mean of the rank's own rows": ("text_adversarial", Views, "mean", _own_mean),
    "keys of the first rank's rows": ("beside and anchor", Keys, "from_row", _first_rows),
}

"""Steps of TaiChi on shares of a batch, as ranks compute them, and on the whole, as one process does."""

from dataclasses import replace

import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.data.batching import rank_rows
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import LinearHead
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import Views
from tests.ranks.cases.steps import SENTENCES

NUM_CLASSES = 5
LABELS = (3, 0, 4, 1, 2, 2, 0)
ATTACKED = (
    None,
    "a terrible story !",
    None,
    "the actr was great , but the plot was sl0w and the ending was almost terrible .",
    "neever",
    None,
    "a wonderful sttory !",
)
# The pairs of the first rank of two, which has three rows, are one, or none.
SPREAD = tuple(text is not None for text in ATTACKED)
SIDED = (False, False, False, True, True, False, True)
NONE = 7 * (False,)
CASES = {
    "none": ({}, SPREAD),
    "sharp": ({"temperature": 0.3}, SPREAD),
    "distance": ({"similarity": "neg_l2"}, SPREAD),
    "sided": ({}, SIDED),
    "no pair": ({}, NONE),
    "no_kl": ({"ablation": "no_kl"}, SPREAD),
    "no_ctr": ({"ablation": "no_ctr"}, SIDED),
    "no_adv": ({"ablation": "no_adv"}, SPREAD),
    "adversarial": ({"ablation": "adversarial"}, SPREAD),
    "none, in pieces": ({}, SPREAD),
}
# At ZeRO stage 0 every case is run, at 1 to 3 these.
CUT_UP = ("none", "sided", "none, in pieces")


def make_step(folder: str, case: str, dtype=torch.float32) -> Step:
    """The step of ``case`` on two tiny encoders, from the same weights each time, the networks some way apart."""
    options, _ = CASES[case]
    torch.manual_seed(1)
    encoders = [Encoder.from_pretrained(folder, dtype=dtype, dropout=0.0, pooling="mean") for _ in range(2)]
    heads = [LinearHead(encoders[0].hidden_size, NUM_CLASSES) for _ in range(2)]
    with torch.no_grad():
        for parameter in encoders[1].parameters():
            parameter += 0.05 * torch.randn(parameter.shape)
    objective = resolve_objective("taichi")(encoders[0].hidden_size, heads[0], **options)
    second = None
    if objective.needs.second_network:
        second, objective.second_classifier = encoders[1], heads[1]
    size = 2 if "pieces" in case else None
    search = PerturbationConfig()
    return Step(encoders[0], objective.to(dtype), search, micro_batch_size=size, second=second).train()


def share_of(encoder: Encoder, case: str, rank: int, num_ranks: int):
    """The rows of a rank; where a row has no pair the sentence stands in its place."""
    rows, is_present = rank_rows(len(LABELS), rank, num_ranks), CASES[case][1]
    texts = [
        attacked if is_there else text
        for text, attacked, is_there in zip(SENTENCES[: len(LABELS)], ATTACKED, is_present, strict=True)
    ]
    attacked = replace(encoder.pack(texts[rows]), is_present=torch.tensor(is_present[rows]))
    return replace(encoder.pack(SENTENCES[rows], LABELS[rows]), variants={"adversarial": attacked})


def make_ready(folder: str, case: str, rank: int, num_ranks: int, dtype=torch.float32):
    step = make_step(folder, case, dtype)
    return step, share_of(step.encoder, case, rank, num_ranks)


def _own_pairs_count(views, row_losses, is_counted):
    return torch.where(is_counted, row_losses, 0).sum() / is_counted.sum().clamp(min=1)


def _own_keys_alone(views, vectors, gather=Views.gather):
    whole = gather(views, vectors)
    own = slice(whole.row_offset, whole.row_offset + len(vectors))
    kept = torch.zeros_like(whole.vectors)
    kept[own] = whole.vectors[own]
    return replace(whole, vectors=kept)


def _keys_are_constant(views, vectors, gather=Views.gather):
    return gather(views, vectors).detach()


def _first_rows_everywhere(batch, share, make=GlobalBatch.__init__):
    make(batch, share)
    batch.row_offset = 0


MUTANTS = {
    "a mean of the rank's own pairs": ("none", Views, "masked_mean", _own_pairs_count),
    "keys of a rank's own": ("sharp", Views, "gather", _own_keys_alone),
    "keys without a gradient": ("sharp", Views, "gather", _keys_are_constant),
    "the first rank's rows": ("sharp", GlobalBatch, "__init__", _first_rows_everywhere),
}

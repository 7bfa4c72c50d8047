"""One step on shares of a batch, as a rank of several computes it, and on the whole batch, as one process does."""

from contextlib import contextmanager
from unittest import mock

import torch

from fastadv.config.schema import Config, PerturbationConfig
from fastadv.data.batching import rank_rows
from fastadv.distributed import zero
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts
from fastadv.objectives.sentences.rtd import Corrupted, ReplacedTokenDetection, build_detection

# Rows 1 and 6 are one sentence, on different ranks.
SENTENCES = (
    "the film was not very good .",
    "a wonderful story !",
    "it is dull",
    "the actor was great , but the plot was slow and the ending was almost terrible .",
    "never",
    "love this camera and this music .",
    "a wonderful story !",
    "every scene was sad and slow",
)

LABELS = (3, 0, 4, 1, 2, 2, 0, 4)
NUM_CLASSES = 5

_SIZES = {"epsilon_relative": 0.2, "alpha": 1.0, "beta": 0.4, "gamma": 0.7, "num_steps": 2, "sigma": 0.0}
_RTD = {"rtd_generator": "unigram", "weight_rtd": 0.5, "weight_adversarial": 0.5}
CASES = {
    "simcse": ("simcse", {}, {}),
    "fgm": ("uscal", {"weight_adversarial": 0.5}, {"method": "fgm", "epsilon_relative": 0.2}),
    "pgd": ("robustsentembed", _RTD, {**_SIZES, "rho": 1.0, "norm": "l2"}),
    "adaptive": ("robustsentembed", _RTD, {**_SIZES, "num_steps": 3, "rho": 1.0, "norm": "l2", "reuse": "adaptive"}),
    "free": ("robustsentembed", _RTD, {**_SIZES, "rho": 1.0, "norm": "l2", "reuse": "free"}),
    "freelb": ("adversarial_training", {"weight_clean": 0.0}, {**_SIZES, "method": "freelb", "num_steps": 3}),
    "smart": ("smart", {}, {**_SIZES, "method": "pgd", "norm": "l2", "sigma": 0.3, "start": "normal"}),
    "signs": ("robustsentembed", {"weight_adversarial": 0.5}, _SIZES),
}
# How a case is computed; its result is that of the case before the comma on one process.
SAVING = {
    "pgd, in pieces": {"micro_batch_size": 1},
    "adaptive, in pieces": {"micro_batch_size": 2},
    "pgd, in pieces and checkpointed": {"micro_batch_size": 2, "checkpoint_activations": True},
}


def plain(case: str) -> str:
    """The case without what saves memory."""
    return case.partition(",")[0] if case in SAVING else case


def has_stage(case: str, stage: int, num_ranks: int) -> bool:
    """Stage 3 leaves no rank a layer's parameters for its second run.

    With four ranks, which take longest, what was made for stages 0 to 3 on two is run at the first and the last.
    """
    if num_ranks > 2 and stage in (1, 2) and (case in SAVING or case in ("freelb", "smart")):
        return False
    return stage < 3 or "checkpointed" not in case


@contextmanager
def everything_cut():
    """Engines made inside cut up every parameter at stage 3.

    DeepSpeed leaves whole what is smaller than 100,000 elements, as everything here is.
    """
    made = zero.deepspeed_config

    def cutting(*arguments):
        settings = made(*arguments)
        settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        return settings

    with mock.patch.object(zero, "deepspeed_config", cutting):
        yield


# Every case on seven rows, which leave the ranks unequal shares (3 and 4; 1, 2, 2 and 2), and the longest one on all.
BATCHES = [*((case, 7) for case in CASES), ("pgd", 8), *((case, 7) for case in SAVING)]
# In float64, with signs of its own.
DOUBLE = [("signs", 7), ("signs", 8), ("pgd", 7), ("pgd, in pieces", 7), ("adaptive, in pieces", 7)]
DOUBLE += [("freelb", 7), ("smart", 7)]


def make_step(folder: str, case: str, dtype=torch.float32, **more) -> Step:
    """The step of ``case`` on the tiny encoder at ``folder``, from the same weights and table each time."""
    objective, options, perturbation = CASES[plain(case)]
    saving = dict(SAVING.get(case, {}))
    is_checkpointed = saving.pop("checkpoint_activations", False)
    encoder = Encoder.from_pretrained(
        folder, dtype=dtype, dropout=0.0, pooling="mean", checkpoint_activations=is_checkpointed
    )
    torch.manual_seed(1)
    kind = resolve_objective(objective)
    if kind.needs.labels:
        built = kind(encoder.hidden_size, ClassificationHead(encoder.hidden_size, NUM_CLASSES), **options).to(dtype)
        built.begin(RunFacts(num_rows=len(SENTENCES), batches_per_epoch=1, total_steps=20))
    else:
        # At the usual 0.05 a rounding of a cosine (6e-8) is 20 times that in a logit, and so in every gradient.
        built = kind(encoder.hidden_size, temperature=0.5, **options).to(dtype)
    detection = None
    if built.needs.detection is not None:
        detection = build_detection(built.needs.detection, encoder, lambda: torch.ones(encoder.vocab_size)).to(dtype)
    step = Step(encoder, built, PerturbationConfig(**perturbation), detection, **saving, **more).train()
    if step.eta_table is not None:
        step.eta_table.table.normal_(std=0.1)
        step.eta_table.load_state_dict({"eta_table": step.eta_table.table.clone()})
    if step.average is not None:
        # Another model than the one it is the average of.
        moved = {name: 1.1 * value for name, value in step.average.state_dict().items()}
        step.average.load_state_dict({**moved, "average_model.num_updates": torch.tensor(0)})
    return step


def make_config(stage: int, precision: str = "fp32") -> Config:
    config = Config()
    config.engine.zero_stage, config.engine.precision = stage, precision
    config.train.batch_size = len(SENTENCES)
    config.optimizer.lr, config.optimizer.warmup_ratio = 1e-3, 0.0
    return config


def share_of(encoder: Encoder, num_rows: int, rank: int, num_ranks: int):
    rows = rank_rows(num_rows, rank, num_ranks)
    return encoder.pack(SENTENCES[:num_rows][rows], LABELS[:num_rows][rows])


@contextmanager
def same_tokens_replaced():
    """Replaced token detection and normal starts of delta by a rule, where a generator would draw by the rank."""
    from fastadv.perturbation import chains

    drawn = chains.start_delta

    def corrupt(self, batch):
        replaced = ~batch.is_special & (batch.input_ids % 3 == 0)
        return Corrupted(torch.where(replaced, batch.input_ids + 1, batch.input_ids), replaced)

    def start(x, batch, sigma, sizes, norm, active, kind):
        if kind != "normal":
            return drawn(x, batch, sigma, sizes, norm, active, kind)
        columns = torch.arange(x.shape[1], dtype=x.dtype)
        return sigma * torch.sin(batch.input_ids[:, None] + batch.position_ids[:, None] * columns)

    with (
        mock.patch.object(ReplacedTokenDetection, "corrupt", corrupt),
        mock.patch.object(chains, "start_delta", start),
    ):
        yield


@contextmanager
def signs(recorded: list, share=None):
    """Records the sign of every gradient of a sign step, or, given the ``share`` of tokens, steps by those recorded.

    Where a gradient is within rounding of 0 its sign, and with it the whole step, depends on the order of sums.
    """
    from fastadv.perturbation import chains

    of_fgsm, of_both, replayed = chains.sign_step, chains.pair_step, iter(recorded)

    def signs_of(grad):
        if share is not None:
            return next(replayed)[share].to(grad.dtype)
        recorded.append(grad.sign())
        return grad

    def sign_step(delta, grad, *rest):
        return of_fgsm(delta, signs_of(grad), *rest)

    def pair_step(delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, *rest):
        pgd, _ = of_both(delta_pgd, delta_fgsm, grad, cu_seqlens, alpha, beta, *rest)
        return pgd, sign_step(delta_fgsm, grad, cu_seqlens, beta, *rest)

    with mock.patch.multiple(chains, sign_step=sign_step, pair_step=pair_step):
        yield


def token_share(encoder: Encoder, num_rows: int, rank: int, num_ranks: int) -> slice:
    """The tokens of a rank among those of the whole batch."""
    ends = encoder.pack(SENTENCES[:num_rows]).cu_seqlens.tolist()
    rows = rank_rows(num_rows, rank, num_ranks)
    return slice(ends[rows.start], ends[rows.stop])

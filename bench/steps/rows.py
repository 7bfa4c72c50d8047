"""The rows of ``bench.training_step``: which steps are timed, and the models and optimizers they share.

All rows of one dtype and way of updating share one set of weights and one optimizer, whose learning rate is 0: so they
cost what they cost in training, need no memory of their own, and each sees the same weights however many ran before.
"""

import copy
from dataclasses import dataclass
from typing import Callable, Iterator, Optional

import torch
from torch import Tensor, nn

from bench.steps.cost import bytes_of, optimizer_tensors
from bench.steps.data import Sample, TokenPieces
from bench.steps.padded import PublicStructure, SimCSE, TextbookSCAL
from fastadv.config.schema import Config
from fastadv.data.labelled.labels import LabelMap
from fastadv.distributed import zero
from fastadv.distributed.optimizer import build_optimizer
from fastadv.encoder.classifier.classification_head import draw_head
from fastadv.engine.build import build_encoder, build_step
from fastadv.errors import UserError
from fastadv.launch.load import load_config

MAX_GRAD_NORM = 1.0
# More than any run has, for the schedule.
_TOTAL_STEPS = 10**6

_SEARCH = (
    "--objective=robustsentembed",
    "--perturbation.norm=linf",
    "--perturbation.alpha=1e-5",
    "--perturbation.beta=1e-3",
    "--perturbation.gamma=2e-2",
    "--perturbation.rho=0.5",
    "--perturbation.epsilon=null",
)
_NO_ETA = "--perturbation.use_eta=false"
_ADAPTIVE = (*_SEARCH, "--perturbation.reuse=adaptive", _NO_ETA)
LABELS = LabelMap(("negative", "positive"))
_LABELLED = ("--data.label_field=label", "--data.train=demo:imdb")
_FGM = ("--perturbation.method=fgm", "--perturbation.epsilon=1.0")
_FREELB = (
    "--perturbation.method=freelb",
    "--perturbation.alpha=0.5",
    "--perturbation.epsilon=null",
    "--objective_options.weight_clean=0",
)
_CLEAN_GRAPH = ("--perturbation.sigma=0", _NO_ETA, "--perturbation.inner_dropout=frozen")


@dataclass(frozen=True)
class Mode:
    """A step of fastadv: what its configuration has beside the defaults."""

    label: str
    options: tuple[str, ...]
    has_inner_steps: bool = True
    is_swept: bool = True
    """whether it is run at every N, or at the largest up to 5 alone"""
    has_detection: bool = False
    num_proposals: int = 0
    """copies of each sentence that the search over texts compares"""


_TEXT = ("--objective=simcse", "--perturbation.text.edits=[typos]")
_INSTEAD, _BESIDE = (f"--objective_options.text_positive={place}" for place in ("instead", "beside"))


def _text_mode(label: str, num_proposals: int, *options: str) -> Mode:
    given = (*_TEXT, f"--perturbation.text.num_proposals={num_proposals}", *options)
    return Mode(label, given, has_inner_steps=False, num_proposals=num_proposals)


MODES = (
    Mode("simcse packed", ("--objective=simcse",), has_inner_steps=False),
    Mode("outer step alone", (*_SEARCH, "--perturbation.num_steps=0"), has_inner_steps=False),
    Mode("none", (*_SEARCH, "--perturbation.reuse=none")),
    Mode("exact", (*_SEARCH, "--perturbation.reuse=exact")),
    Mode("exact, no eta", (*_SEARCH, "--perturbation.reuse=exact", _NO_ETA), is_swept=False),
    Mode("exact, clean graph", (*_SEARCH, "--perturbation.reuse=exact", *_CLEAN_GRAPH), is_swept=False),
    Mode("adaptive", _ADAPTIVE),
    Mode("adaptive probe", (*_ADAPTIVE, "--perturbation.probe_every=1"), is_swept=False),
    Mode("free", (*_SEARCH, "--perturbation.reuse=free", _NO_ETA)),
    Mode(
        "uscal", ("--objective=uscal", "--perturbation.method=fgm", "--perturbation.epsilon=0.3"), has_inner_steps=False
    ),
    _text_mode("text, drawn", 1, _INSTEAD),
    _text_mode("text, worst of 4", 4, _INSTEAD),
    _text_mode("text, worst of 8", 8, _INSTEAD),
    _text_mode("text, worst of 8, beside z+", 8, _BESIDE),
    Mode("fine-tuning", ("--objective=fine_tuning", *_LABELLED), has_inner_steps=False),
    Mode(
        "scal",
        ("--objective=scal", *_LABELLED, *_FGM, "--perturbation.reuse=exact"),
        has_inner_steps=False,
    ),
    Mode("freelb", ("--objective=adversarial_training", *_LABELLED, *_FREELB)),
    Mode(
        "rtd unigram",
        (*_SEARCH, "--perturbation.reuse=exact", "--objective_options.rtd_generator=unigram"),
        is_swept=False,
        has_detection=True,
    ),
    Mode(
        "rtd generator",
        (*_SEARCH, "--perturbation.reuse=exact", "--objective_options.rtd_generator={generator}"),
        is_swept=False,
        has_detection=True,
    ),
)
"""What the configuration refuses is left out, with a word on stderr. The first step of ``adaptive`` is a probe and is
not timed; what a probe costs is the row ``adaptive probe``, in which every step is one."""


@dataclass
class Row:
    """One step that can be run on any sample, and what its record says of it."""

    label: str
    dtype: str
    via: str
    """torch (AdamW on the module, in bf16 on float32 masters of it), engine (DeepSpeed), or autocast (of float32
    weights)"""
    num_steps: Optional[int]
    run: Callable[[Sample], float]
    parameters: Callable[[], list[Tensor]]
    optimizer: torch.optim.Optimizer
    """shared by the rows of one dtype and way of updating"""
    held_bytes: Callable[[], int]
    """parameters, optimizer state and tables: what stays between steps"""
    metrics: Callable[[], dict[str, float]] = dict
    """of the last step, by name"""
    is_first_apart: bool = False
    """whether the first step is not like those after it: a probe"""

    @property
    def name(self) -> str:
        steps = "" if self.num_steps is None else f" N={self.num_steps}"
        return f"{self.label}{steps} {self.dtype} {self.via}"


@dataclass(frozen=True)
class Models:
    """What the rows run on: names or folders."""

    label: str
    encoder: str
    generator: str
    """a masked language model of the encoder's size"""

    def config(
        self, mode: Mode, batch_size: int, dtype: str, num_steps: Optional[int] = None, zero_stage: int = 0
    ) -> Config:
        """UserError where an option is not known."""
        options = [option.format(generator=self.generator) for option in mode.options]
        options += [f"--encoder.model={self.encoder}", f"--train.batch_size={batch_size}", "--optimizer.lr=0"]
        options += [f"--optimizer.max_grad_norm={MAX_GRAD_NORM}", "--encoder.pooling=cls", "--encoder.max_length=32"]
        options += [f"--engine.precision={dtype}", f"--engine.zero_stage={zero_stage}"]
        options += [] if num_steps is None else [f"--perturbation.num_steps={num_steps}"]
        return load_config(None, options)


class PlainUpdate:
    """Gradients, clipping and AdamW in plain torch, on the parameters of a module or on float32 masters of them."""

    def __init__(self, module: nn.Module, config: Config, has_masters: bool = False):
        self.module = module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.masters = None
        if has_masters:
            self.masters = [nn.Parameter(p.detach().float()) for p in self.parameters]
            self.optimizer = torch.optim.AdamW(self.masters, lr=config.optimizer.lr, weight_decay=0.0, fused=True)
        else:
            self.optimizer = build_optimizer(module, config.optimizer)

    def run(self, loss_of: Callable[[], Tensor]) -> float:
        for parameter in self.parameters:
            parameter.grad = None
        loss = loss_of()
        loss.backward()
        trained = self.parameters
        if self.masters is not None:
            trained = self.masters
            for master, parameter in zip(trained, self.parameters):
                master.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(trained, MAX_GRAD_NORM)
        self.optimizer.step()
        if self.masters is not None:
            torch._foreach_copy_([p.data for p in self.parameters], [m.data for m in self.masters])
            for master in self.masters:
                master.grad = None
        return loss.item()

    def held_bytes(self) -> int:
        return bytes_of([*self.module.parameters(), *optimizer_tensors(self.optimizer)])


class Chosen(nn.Module):
    """Several steps over the same weights behind one forward, for one engine to wrap."""

    def __init__(self, steps: dict[str, nn.Module]):
        super().__init__()
        self.steps = nn.ModuleDict(steps)
        self.name = next(iter(steps))

    def forward(self, batch):
        return self.steps[self.name](batch)


def _steps_of(models: Models, modes: list[tuple[Mode, Optional[int]]], batch_size, dtype, samples, stage=0) -> dict:
    """(mode, N) → Step. They share the encoder, and the heads and the discriminator of the first that has them."""
    steps, encoder, detection = {}, None, None
    shared: dict[str, nn.Module] = {}
    for mode, num_steps in modes:
        config = models.config(mode, batch_size, dtype, num_steps, stage)
        encoder = build_encoder(config) if encoder is None else encoder
        step = build_step(config, encoder, TokenPieces(samples), LABELS).train()
        for name in ("head", "classifier"):
            if hasattr(step.objective, name):
                setattr(step.objective, name, shared.setdefault(name, getattr(step.objective, name)))
        if step.detection is not None:
            detection = step.detection if detection is None else detection
            step.detection.discriminator, step.detection.head = detection.discriminator, detection.head
        steps[mode, num_steps] = step
    return steps


def _allowed(models: Models, modes, batch_size, dtype, note: Callable[[str], None]) -> list:
    found = []
    for mode, num_steps in modes:
        try:
            models.config(mode, batch_size, dtype, num_steps)
        except UserError as error:
            note(f"left out: {mode.label} {dtype}: {error}")
        else:
            found.append((mode, num_steps))
    return found


def _table_bytes(step) -> int:
    return 0 if step.eta_table is None else bytes_of(step.extra_state_dict().values())


def metrics_of(step) -> dict[str, float]:
    return {name: float(value) for name, value in step.metrics.items()}


def _engine_rows(models, modes, batch_size, dtype, samples, stage=0) -> Iterator[Row]:
    """Through DeepSpeed, as ``fastadv train`` runs them."""
    steps = _steps_of(models, modes, batch_size, dtype, samples, stage)
    names = {key: str(number) for number, key in enumerate(steps)}
    chosen = Chosen({names[key]: step for key, step in steps.items()})
    config = models.config(modes[0][0], batch_size, dtype, zero_stage=stage)
    engine = zero.initialise(chosen, config, _TOTAL_STEPS)
    engine.train()

    def held(step) -> int:
        optimizer = engine.optimizer
        return bytes_of([*chosen.parameters(), *optimizer_tensors(optimizer)]) + _table_bytes(step)

    for key, step in steps.items():
        mode, num_steps = key

        def run(sample: Sample, name=names[key], step=step, mode=mode) -> float:
            chosen.name = name
            loss = engine(sample.with_proposals(mode.num_proposals))
            value, _ = zero.update(engine, loss, MAX_GRAD_NORM, 1)
            step.commit()
            return value

        yield Row(
            mode.label,
            dtype,
            "engine" if stage == 0 else f"engine, ZeRO {stage}",
            num_steps,
            run,
            lambda: list(chosen.parameters()),
            engine.optimizer,
            lambda step=step: held(step),
            lambda step=step: metrics_of(step),
            step.search is not None and step.search.adaptive is not None,
        )


def _torch_rows(models, modes, batch_size, dtype, samples) -> Iterator[Row]:
    """Without DeepSpeed: how much the engine adds."""
    steps = _steps_of(models, modes, batch_size, dtype, samples)
    module = nn.ModuleList(steps.values())
    update = PlainUpdate(module, models.config(modes[0][0], batch_size, dtype))
    for (mode, num_steps), step in steps.items():

        def run(sample: Sample, step=step) -> float:
            value = update.run(lambda: step(sample.packed))
            step.commit()
            return value

        yield Row(
            mode.label,
            dtype,
            "torch",
            num_steps,
            run,
            lambda: update.parameters,
            update.optimizer,
            lambda step=step: update.held_bytes() + _table_bytes(step),
            lambda step=step: metrics_of(step),
            step.search is not None and step.search.adaptive is not None,
        )


def _padded_rows(models, steps, dtypes, batch_size, has_scal: bool) -> Iterator[Row]:
    """Stock SimCSE, the public structure and SCAL's textbook form, in plain torch."""
    config = models.config(MODES[0], batch_size, "fp32")
    encoder = build_encoder(config)
    head = build_step(config, encoder).objective.head
    simcse = SimCSE(encoder.hf, head).train()
    update = PlainUpdate(simcse, config)

    def row(label, dtype, via, num_steps, module, update=update) -> Row:
        def run(sample: Sample) -> float:
            def loss() -> Tensor:
                with torch.autocast("cpu", torch.bfloat16, enabled=via == "autocast"):
                    return module(sample)

            return update.run(loss)

        return Row(label, dtype, via, num_steps, run, lambda: update.parameters, update.optimizer, update.held_bytes)

    if "fp32" in dtypes:
        yield row("simcse stock", "fp32", "torch", None, simcse)
        for num_steps in steps:
            yield row("public", "fp32", "torch", num_steps, PublicStructure(simcse, num_steps))
        if has_scal:
            scal = TextbookSCAL(simcse, draw_head(encoder.hf.config, LABELS)).train()
            yield row("scal textbook", "fp32", "torch", None, scal, PlainUpdate(scal, config))
    if "bf16" in dtypes:
        yield row("simcse stock", "bf16", "autocast", None, simcse)
        rounded = SimCSE(copy.deepcopy(encoder.hf), copy.deepcopy(head)).train().bfloat16()
        rounded_update = PlainUpdate(rounded, config, has_masters=True)
        yield row("simcse stock", "bf16", "torch", None, rounded, rounded_update)
        for num_steps in steps:
            yield row("public", "bf16", "torch", num_steps, PublicStructure(rounded, num_steps), rounded_update)


def build_rows(
    models: Models,
    batch_size: int,
    steps: list[int],
    extra_exact_steps: list[int],
    dtypes: list[str],
    samples: list[Sample],
    has_rtd: bool = True,
    wanted: Callable[[str], bool] = lambda label: True,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Every row of one encoder and batch size, stock SimCSE in fp32 first.

    Args:
        steps: values of N of the modes that are swept; the others take the largest of those up to 5.
        extra_exact_steps: more values of N for ``exact``.
        wanted: by label; stock SimCSE is always there.
    """
    rows = list(_padded_rows(models, steps if wanted("public") else [], dtypes, batch_size, wanted("scal textbook")))
    usual = [max((n for n in steps if n <= 5), default=steps[0])]

    def listed(has_detection: bool) -> list:
        found = []
        for mode in MODES:
            if mode.has_detection != has_detection or not wanted(mode.label):
                continue
            if not mode.has_inner_steps:
                found.append((mode, None))
                continue
            values = steps if mode.is_swept else usual
            more = [n for n in extra_exact_steps if n not in values] if mode.label == "exact" else []
            found += [(mode, n) for n in sorted([*values, *more])]
        return found

    for dtype in dtypes:
        for has_detection in (False, True) if has_rtd else (False,):
            modes = _allowed(models, listed(has_detection), batch_size, dtype, note)
            if modes:
                rows += _engine_rows(models, modes, batch_size, dtype, samples)
    for dtype in dtypes:
        # The pairs that tell what the engine adds.
        pair = [(m, n) for m, n in listed(False) if m.label in ("simcse packed", "exact") and n in (None, *usual)]
        if pair:
            rows += _torch_rows(models, pair, batch_size, dtype, samples)
        if pair and dtype == "bf16":
            # Where DeepSpeed itself keeps the weights in bf16.
            rows += _engine_rows(models, pair, batch_size, dtype, samples, stage=1)
    return rows

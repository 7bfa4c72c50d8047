"""From a config to the parts of a run, in the order they need each other: encoder, data, step."""

import logging
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fastadv.config.own_class import find_class
from fastadv.config.schema import Config
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.packing import PackedBatch
from fastadv.distributed.devices import device_type
from fastadv.distributed.processes import first_rank_first, is_first_rank, world_size
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.engine.selection import DevScore, dev_score, labelled_dev_score
from fastadv.engine.step.step import Step
from fastadv.engine.trackers import check_trackers
from fastadv.engine.training_data import TrainingData, count_tokens
from fastadv.errors import UserError
from fastadv.evaluation.text.training_attack import check_attack
from fastadv.launch.load import check_options
from fastadv.objectives.base import Materials
from fastadv.perturbation import Search, ball
from fastadv_kernels import BackendError, set_backend

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """The parts of a run that hold weights and data."""

    encoder: Any
    """The encoder that is trained, on this rank's device."""
    data: TrainingData
    """Sentences and the order they come in."""
    step: Step
    """The step with the objective, begun."""
    model: nn.Module
    """What is scored and exported: the encoder, or a classifier around it."""
    dev_score: DevScore | None
    """Score on dev data; None where the last weights are exported."""


def build_run(config: Config, device: torch.device, encoder: Any = None) -> Run:
    """The parts of a run as they are before its first step. All ranks call it.

    Args:
        encoder: trained in place of the one ``config.encoder`` names.

    Raises:
        UserError: a mistake in data, dev data or weights that the config names, or a radius that is too small.
    """
    is_labelled = config.data.label_field is not None
    # Before weights are loaded, so that a mistake in dev data is told at once.
    score = None if is_labelled else dev_score(config.dev.data, config.data.quoting)
    encoder = build_encoder(config) if encoder is None else encoder
    encoder.to(device)
    progress = is_first_rank()
    data = TrainingData(config, encoder, progress)
    step = build_step(config, encoder, data.text, data.label_map)
    objective = step.objective
    data.use_variants(objective, encoder)
    objective.begin(data.facts)
    model = encoder
    if is_labelled:
        beside = objective.exported_beside()
        if step.second is not None:
            beside["second"] = Classifier(step.second, objective.second_classifier, data.label_map)
        model = Classifier(encoder, objective.classifier, data.label_map, beside)
        score = first_rank_first(lambda: labelled_dev_score(config, encoder, data.label_map, progress))
    check_resolution(config, step, data.first_batch())
    begins_at = config.perturbation.start_step
    if step.search is not None and begins_at >= data.total_steps and is_first_rank():
        logger.warning(
            "perturbation.start_step = %d: the run ends after step %d, before its search begins",
            begins_at,
            data.total_steps,
        )
    return Run(encoder, data, step, model, score)


def choose_kernels(config: Config) -> None:
    """Sets the backend of the fused operations. UserError where the named one cannot run here."""
    try:
        set_backend(config.engine.kernels)
    except BackendError as error:
        raise UserError(f"engine.kernels = {config.engine.kernels}: {error}") from error


def check_machine(config: Config) -> None:
    """UserError where the named attention, compilation or trackers cannot run on this machine."""
    from fastadv.encoder.attention.kinds import why_not

    check_trackers(config.train.trackers)
    device = device_type()
    dtype = torch.bfloat16 if config.engine.precision == "bf16" else torch.float32
    obstacle = why_not(config.engine.attention, device, dtype, config.encoder.dropout or 0.0)
    if obstacle is not None:
        raise UserError(f"engine.attention = {config.engine.attention}: {obstacle}")
    if config.engine.compile == "cudagraphs" and device != "cuda":
        raise UserError(
            "engine.compile = cudagraphs: needs a CUDA device, and there is none; allowed here: none, default"
        )
    if config.engine.compile != "none" and not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise UserError(
            f"engine.compile = {config.engine.compile}: torch {torch.__version__} does not trace gradients; "
            "allowed here: none"
        )


def build_encoder(config: Config):
    """The encoder as its checkpoint holds it, in float32."""
    from fastadv.encoder import Encoder

    # Adapters are drawn; the rest is read.
    torch.manual_seed(config.train.seed)
    return Encoder.from_pretrained(
        **asdict(config.encoder),
        perturb_at=config.perturbation.perturb_at,
        attention=config.engine.attention,
        checkpoint_activations=config.engine.checkpoint_activations,
    )


def build_step(config: Config, encoder, text=None, label_map: LabelMap | None = None) -> Step:
    """The step with a freshly initialised objective; the same weights for the same seed, whatever was drawn before.

    Args:
        text: the tokenised training sentences, for an objective that asks how often tokens occur in them.
        label_map: the classes, for an objective that uses labels.
    """
    from fastadv.launch.checks_objective import check_objective
    from fastadv.objectives.base import resolve_objective

    if config.engine.zero_stage == 3 and encoder.path == "generic":
        raise UserError(
            f"engine.zero_stage = 3: expected 0 to 2, for {config.encoder.model} runs padded, and stage 3 needs the "
            "packed path's whole passes to prefetch"
        )
    objective_class = resolve_objective(config.objective)
    check_options(objective_class, config.objective_options)
    check_objective(config, objective_class)
    torch.manual_seed(config.train.seed)
    given = (encoder.pooled_size,)
    if objective_class.needs.labels:
        given = (*given, _build_head(config, encoder, label_map))
    objective = objective_class(*given, **config.objective_options)
    objective.bind(encoder)
    if objective.needs.epoch_attack is not None:
        check_attack(objective.needs.epoch_attack)
    if world_size() > 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in objective.modules()):
        raise UserError(
            f"objective_options.head: expected mlp or none on {world_size()} processes, for bn_mlp's statistics would "
            "be those of each process's share"
        )
    companions = objective.companions(
        encoder,
        Materials(
            label_names=None if label_map is None else label_map.names,
            token_counts=None if text is None else partial(count_tokens, text, encoder.vocab_size),
            frozen_dtype=torch.bfloat16 if config.engine.precision == "bf16" else None,
        ),
    )
    if config.engine.compile != "none" and companions.second is not None:
        raise UserError(
            f"engine.compile = {config.engine.compile}: expected none where objective is {config.objective}, which "
            "trains two networks"
        )
    if config.engine.compile != "none" and encoder.path == "generic":
        raise UserError(
            f"engine.compile = {config.engine.compile}: expected none, for {config.encoder.model} runs padded, "
            "and only the packed path can be traced"
        )
    engine = config.engine
    plan, own_search = config.perturbation.resolve(), config.perturbation.search
    return Step(
        encoder,
        objective,
        plan,
        companions.detection,
        engine.compile,
        engine.joint_views,
        config.train.micro_batch_size,
        companions.second,
        config.train.on_nonfinite,
        # From stage 1 on DeepSpeed itself casts the weights.
        torch.bfloat16 if engine.precision == "bf16" and engine.zero_stage == 0 else None,
        None if own_search is None else find_class(own_search, Search, "perturbation.search")(plan),
        config.perturbation.text,
    )


def _build_head(config: Config, encoder, label_map: LabelMap) -> nn.Module:
    """The classification head: the pretrained part of the encoder's own, where it is the encoder that was named."""
    from fastadv.encoder.classifier.classification_head import check_classifiable, draw_head, load_head
    from fastadv.encoder.weights.source import find_model

    check_classifiable(encoder.hf.config, encoder.pooling, config.encoder.model)
    source = find_model(config.encoder.model)
    if source.location == encoder.hf.config.name_or_path:
        return load_head(source, label_map, pooling=encoder.pooling).to(encoder.device)
    # An encoder of the caller's own.
    return draw_head(encoder.hf.config, label_map, encoder.pooling).to(encoder.device)


def check_resolution(config: Config, step: Step, batch: PackedBatch) -> None:
    """Refuses a ball too small for the compute type to hold (METHODS 1); one clean embedding of one batch."""
    if step.objective.needs.adversarial is None:
        return
    with torch.no_grad():
        x = step.encoder.embed(batch.to(step.encoder.device), dropout=False)
    dtype = torch.bfloat16 if config.engine.precision == "bf16" else None
    ball.check_resolution(x, batch.to(x.device), step.plan, dtype)

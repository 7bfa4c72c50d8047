"""From a config to the parts of a run, in the order they need each other: encoder, data, step."""

import logging
from functools import partial
from typing import Iterator, Optional, Sequence

import numpy as np
import torch
from torch import nn

from fastadv.config.schema import Config, DataConfig
from fastadv.data.batching import BatchOrder, make_loader
from fastadv.data.labelled.labels import LabelMap, describe_classes
from fastadv.data.labelled.text import LabelledText, agree
from fastadv.data.mixture import JoinedText, SelectedText, describe_sources, weighted_sources
from fastadv.data.packing import PackedBatch
from fastadv.data.text import TokenizedText, collate
from fastadv.data.variants.text_variants import TextVariants, VariantData
from fastadv.distributed.processes import first_rank_first, rank, world_size
from fastadv.engine.step.gather import AllRanks
from fastadv.engine.step.step import Step
from fastadv.engine.token_counts import count_tokens
from fastadv.errors import UserError
from fastadv.launch.load import check_option_names
from fastadv.objectives.base import Materials, Objective, RunFacts
from fastadv.perturbation.chains import make_search
from fastadv_kernels import BackendError, set_backend

logger = logging.getLogger(__name__)


class TrainingData:
    """Tokenised sentences, with their classes where the config names a column of labels, and the order they come in.

    ``label_map`` has the classes, or is None. Batches have ``labels`` (B,), int64, or None.

    Args:
        encoder: gives the tokenizer, ``max_length`` and ``position_offset``.
        progress: show a bar while text is tokenised for the first time.
    """

    def __init__(self, config: Config, encoder, progress: bool):
        data, train = config.data, config.train
        sources = weighted_sources(data.train)
        build = _build_labelled if data.label_field is not None else _build_unlabelled
        # The first rank of a machine tokenises, the others map what it wrote.
        texts = first_rank_first(lambda: [build(source.path, data, encoder, progress) for source in sources])
        self.label_map: Optional[LabelMap] = None
        if data.label_field is not None:
            texts = agree(texts, data.label_names)
            self.label_map = texts[0].label_map
            counts = {name: sum(text.class_counts[name] for text in texts) for name in self.label_map.names}
            summary, warnings = describe_classes(counts)
            logger.info("%s", summary)
            for warning in warnings:
                logger.warning("%s", warning)
        self.text = texts[0] if len(texts) == 1 else JoinedText(texts)
        _require_negatives(config, texts)
        parts = [(len(text), source.weight) for text, source in zip(texts, sources)]
        self._variant_data: Optional[VariantData] = None
        self._variants: Optional[TextVariants] = None
        self._sources, self._config = [source.path for source in sources], config
        if data.word_sets is not None or data.pairs is not None:
            self._read_variants(len(self.text))
            if self._variant_data.rows is not None:
                rows = self._variant_data.rows
                ends = np.cumsum([count for count, _ in parts])
                counts = np.diff(np.searchsorted(rows, ends), prepend=0)
                parts = [(int(count), weight) for count, (_, weight) in zip(counts, parts)]
                self.text = SelectedText(self.text, rows)
        self.order = BatchOrder(
            self.text.lengths, train.batch_size, train.seed, data.bucket_batches, parts, world_size()
        )
        num_batches = train.num_epochs * self.order.batches_per_epoch
        self.total_steps = train.max_steps or num_batches // train.accumulation_steps
        if self.total_steps == 0:
            raise UserError(
                f"train.accumulation_steps = {train.accumulation_steps}: expected at most {num_batches}, "
                "the batches of train.num_epochs passes over the data"
            )
        self._num_workers = data.num_workers
        self._collate = partial(collate, position_offset=encoder.position_offset)

    @property
    def fingerprint(self) -> str:
        """Equal for equal sentences cut by equal tokenizers to equal lengths, with equal variants."""
        own = self.text.fingerprint
        return own if self._variant_data is None else f"{own}-{self._variant_data.fingerprint}"

    def _read_variants(self, num_rows: int) -> None:
        self._variant_data = VariantData.read(self._sources, self._config.data)
        if self._variant_data.rows is None and len(self._variant_data.texts) != num_rows:
            raise ValueError(f"{len(self._variant_data.texts)} texts for {num_rows} tokenised rows")

    def use_variants(self, objective: Objective, encoder) -> None:
        """Has batches bring the variants that ``objective`` asks for."""
        if not objective.needs.variants:
            return
        if self._variant_data is None:
            self._read_variants(len(self.text))
        self._variants = self._variant_data.variants(encoder, self._config.train.seed)
        self._variants.keep(objective.needs.variants)

    @property
    def variants(self) -> Optional[TextVariants]:
        """Other texts of each row, for an objective that asks for them."""
        return self._variants

    def _collate_of(self, epoch: int):
        return self._collate if self._variants is None else self._variants.collate(self._collate, epoch)

    def batches(self, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
        """This rank's share of each batch that is left of an epoch after its first ``start_batch``."""
        share = rank(), world_size()
        collate = self._collate_of(epoch)
        return make_loader(self.text, self.order, epoch, start_batch, self._num_workers, collate, share)

    def first_batch(self) -> PackedBatch:
        """The whole batch the run starts with, without starting loader processes."""
        return next(make_loader(self.text, self.order, 0, 0, 0, self._collate))


def _require_negatives(config: Config, texts: Sequence[TokenizedText]) -> None:
    """UserError where all sentences are equal: none is another's negative, and a contrastive loss is 0 forever."""
    from fastadv.objectives.base import resolve_objective
    from fastadv.objectives.sentences.contrastive import ContrastiveObjective

    if config.data.negative_field or not issubclass(resolve_objective(config.objective), ContrastiveObjective):
        return
    pieces = [piece for text in texts for piece in text.sentence_ids.pieces]
    # The first piece that holds another sentence ends it: that is nearly always the first.
    if any((piece != pieces[0][0]).any() for piece in pieces):
        return
    number = sum(map(len, texts))
    what = "holds 1 sentence" if number == 1 else f"holds {number:,} sentences, all equal"
    raise UserError(
        f"data.train: {describe_sources(config.data.train)} {what} after truncation to {config.encoder.max_length} "
        "tokens; expected two different ones or more, for a sentence's negatives are the others"
    )


def _build_unlabelled(source: str, data: DataConfig, encoder, progress: bool) -> TokenizedText:
    return TokenizedText.build(
        source,
        encoder.tokenize,
        encoder.tokenizer_fingerprint,
        encoder.max_length,
        data.field,
        data.split,
        data.cache_dir,
        data.max_sentences,
        progress,
        data.positive_field,
        data.negative_field,
    )


def _build_labelled(source: str, data: DataConfig, encoder, progress: bool) -> LabelledText:
    return LabelledText.build(
        source,
        encoder,
        data.label_field,
        data.field,
        data.pair_field,
        data.split,
        data.cache_dir,
        data.max_sentences,
        progress,
    )


def choose_kernels(config: Config) -> None:
    """Sets the backend of the fused operations. UserError where the named one cannot run here."""
    try:
        set_backend(config.engine.kernels)
    except BackendError as error:
        raise UserError(f"engine.kernels = {config.engine.kernels}: {error}") from error


def check_machine(config: Config) -> None:
    """UserError where the named attention, compilation or trackers cannot run on this machine."""
    from fastadv.encoder.attention.kinds import why_not
    from fastadv.engine.trackers import check_trackers

    check_trackers(config.train.trackers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
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

    encoder = config.encoder
    # Adapters are drawn; the rest is read.
    torch.manual_seed(config.train.seed)
    return Encoder.from_pretrained(
        encoder.model,
        pooling=encoder.pooling,
        max_length=encoder.max_length,
        dropout=encoder.dropout,
        path=encoder.path,
        perturb_at=config.perturbation.perturb_at,
        num_frozen_layers=encoder.num_frozen_layers,
        lora_rank=encoder.lora_rank,
        lora_alpha=encoder.lora_alpha,
        lora_target_modules=encoder.lora_target_modules,
        attention=config.engine.attention,
        checkpoint_activations=config.engine.checkpoint_activations,
    )


def build_step(config: Config, encoder, text=None, label_map: Optional[LabelMap] = None) -> Step:
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
    check_option_names(objective_class, config.objective_options)
    check_objective(config, objective_class)
    torch.manual_seed(config.train.seed)
    given = (encoder.hidden_size,)
    if objective_class.needs.labels:
        given = (*given, _build_head(config, encoder, label_map))
    objective = objective_class(*given, **config.objective_options)
    objective.bind(encoder)
    if objective.needs.epoch_attack is not None:
        from fastadv.engine import epoch_attack

        epoch_attack.check_attack(objective.needs.epoch_attack)
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
    plan = config.perturbation.resolve()
    step = Step(
        encoder,
        objective,
        plan,
        companions.detection,
        engine.compile,
        engine.joint_views,
        config.train.micro_batch_size,
        companions.second,
        config.train.on_nonfinite,
        make_search(config.perturbation.search, plan),
    )
    if config.engine.precision == "bf16" and config.engine.zero_stage == 0:
        step.compute_dtype = torch.bfloat16
    return step


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


def run_facts(config: Config, data: TrainingData) -> RunFacts:
    """What an objective may know of the run."""
    labels = None if data.label_map is None else data.text.labels
    return RunFacts(
        num_rows=len(data.text),
        batches_per_epoch=data.order.batches_per_epoch,
        total_steps=data.total_steps,
        seed=config.train.seed,
        row_labels=labels,
        label_names=None if data.label_map is None else list(data.label_map.names),
        accumulation_steps=config.train.accumulation_steps,
        ranks=AllRanks(),
    )


def check_resolution(config: Config, step: Step, batch: PackedBatch) -> None:
    """Refuses a ball too small for the compute type to hold (METHODS 1); one clean embedding of one batch."""
    from fastadv.perturbation import check_resolution as check

    if step.objective.needs.adversarial is None:
        return
    with torch.no_grad():
        x = step.encoder.embed(batch.to(step.encoder.device), dropout=False)
    dtype: Optional[torch.dtype] = torch.bfloat16 if config.engine.precision == "bf16" else None
    check(x, batch.to(x.device), step.plan, dtype)

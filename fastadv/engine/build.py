"""From a config to the parts of a run, in the order they need each other: encoder, data, step."""

from functools import partial
from typing import Iterator, Optional

import torch

from fastadv.config import Config
from fastadv.config_parser import check_option_names
from fastadv.data.batching import BatchOrder, make_loader
from fastadv.data.mixture import JoinedText, weighted_sources
from fastadv.data.packing import PackedBatch
from fastadv.data.text import TokenizedText, collate
from fastadv.engine.step import Step
from fastadv.errors import UserError
from fastadv_kernels import BackendError, set_backend


class TrainingData:
    """Tokenised sentences and the order they come in.

    Args:
        encoder: gives the tokenizer, ``max_length`` and ``position_offset``.
        progress: show a bar while text is tokenised for the first time.
    """

    def __init__(self, config: Config, encoder, progress: bool):
        data, train = config.data, config.train
        sources = weighted_sources(data.train)
        texts = [
            TokenizedText.build(
                source.path,
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
            for source in sources
        ]
        self.text = texts[0] if len(texts) == 1 else JoinedText(texts)
        parts = [(len(text), source.weight) for text, source in zip(texts, sources)]
        self.order = BatchOrder(self.text.lengths, train.batch_size, train.seed, data.bucket_batches, parts)
        self.total_steps = train.max_steps or train.num_epochs * self.order.batches_per_epoch
        self._num_workers = data.num_workers
        self._collate = partial(collate, position_offset=encoder.position_offset)

    @property
    def fingerprint(self) -> str:
        """Equal for equal sentences cut by equal tokenizers to equal lengths."""
        return self.text.fingerprint

    def batches(self, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
        """What is left of an epoch after its first ``start_batch`` batches."""
        return make_loader(self.text, self.order, epoch, start_batch, self._num_workers, self._collate)

    def first_batch(self) -> PackedBatch:
        """The batch the run starts with, without starting loader processes."""
        return next(make_loader(self.text, self.order, 0, 0, 0, self._collate))


def choose_kernels(config: Config) -> None:
    """Sets the backend of the fused operations. UserError where the named one cannot run here."""
    try:
        set_backend(config.engine.kernels)
    except BackendError as error:
        raise UserError(f"engine.kernels = {config.engine.kernels}: {error}") from error


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
    )


def build_step(config: Config, encoder, text=None) -> Step:
    """The step with a freshly initialised objective; the same weights for the same seed, whatever was drawn before.

    Args:
        text: the tokenised training sentences, for an objective that asks how often tokens occur in them.
    """
    from fastadv.objectives.base import resolve_objective

    objective_class = resolve_objective(config.objective)
    check_option_names(objective_class, config.objective_options)
    torch.manual_seed(config.train.seed)
    objective = objective_class(encoder.hidden_size, **config.objective_options)
    detection = None
    if objective.detection is not None:
        from fastadv.engine.token_counts import count_tokens
        from fastadv.objectives.rtd import build_detection

        counts = None if text is None else partial(count_tokens, text, encoder.vocab_size)
        detection = build_detection(objective.detection, encoder, counts)
    return Step(encoder, objective, config.perturbation, detection)


def check_resolution(config: Config, step: Step, batch: PackedBatch) -> None:
    """Refuses a ball too small for the compute type to hold (METHODS 1); one clean embedding of one batch."""
    from fastadv.perturbation import check_resolution as check

    if not step.objective.uses_adversary:
        return
    with torch.no_grad():
        x = step.encoder.embed(batch.to(step.encoder.device), dropout=False)
    dtype: Optional[torch.dtype] = torch.bfloat16 if config.engine.precision == "bf16" else None
    check(x, batch.to(x.device), config.perturbation, dtype)

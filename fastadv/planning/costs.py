"""What a step costs in floating-point operations, from a configuration alone (docs/scaling.md).

Counted are matrix products, two operations for a multiplication and an addition, of all ranks together. A linear map
costs 2 * rows * elements forward, the same for the gradient by its input, and the same for that by its weight where it
is trained. Attention has two products of (L, D) by (D, L) a sentence, laid out to the batch's longest sentence, and
twice that in a backward pass.

    outer pass (z, z+, z_adv, D)      forward, gradient by inputs and by weights      3F
    inner gradient                    forward, gradient by inputs                     2F
    inner gradient, reuse none        z+ anew, forward, full backward: once for delta, once for eta     8F
    inner gradient, clean graph       gradient by inputs                              1F

``tests/planning/test_costs.py`` compares with what torch counts in real steps.
"""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Optional

import torch
from torch import nn

from fastadv.config.schema import Config
from fastadv.encoder.classifier.classification_head import make_head
from fastadv.launch.checks import rtd_generator_of
from fastadv.objectives.base import LossSizes, Objective, resolve_objective
from fastadv.planning.cards import find_card, peak_flops
from fastadv.planning.model_shape import Count, ModelShape, matrices, measure, on_meta, shape_of

__all__ = ["BatchSize", "StepCosts", "find_card", "peak_flops", "step_flops"]

MEAN_LENGTH_SHARE = 0.69
"""mean length over max_length where nothing is known of the text: 21.95 of 32 in 10,000 sentences of film reviews"""


@dataclass(frozen=True)
class BatchSize:
    """Sentences and tokens of a batch over all ranks."""

    num_sentences: int
    num_tokens: float
    length: int
    """tokens of the longest sentence, which attention lays all of them out to"""

    @classmethod
    def assumed(cls, config: Config, mean_length: Optional[float] = None) -> "BatchSize":
        """A batch of the config's size; None assumes ``MEAN_LENGTH_SHARE``."""
        mean = MEAN_LENGTH_SHARE * config.encoder.max_length if mean_length is None else mean_length
        return cls(config.train.batch_size, mean * config.train.batch_size, config.encoder.max_length)


class Passes:
    """FLOPs of passes of one batch through a model.

    Args:
        first_tokens_only: whether the last layer asks at first tokens alone.
        num_asking: tokens at which it asks in place of these (a generator's masked ones); attention is then whole.
    """

    def __init__(
        self, shape: ModelShape, batch: BatchSize, first_tokens_only: bool, num_asking: Optional[float] = None
    ):
        self.shape, self.batch = shape, batch
        self._num_rows = batch.num_tokens if shape.is_packed else batch.num_sentences * batch.length
        self._asks_first = first_tokens_only and shape.is_packed
        self._num_asking = num_asking if shape.is_packed else None

    def _layers(self):
        """Layer, rows of its keys, rows that ask, and FLOPs of its attention forward."""
        batch, hidden, last = self.batch, self.shape.hidden_size, len(self.shape.layers) - 1
        for i, layer in enumerate(self.shape.layers):
            asking, num_queries = self._num_rows, batch.num_sentences * batch.length
            if i == last and self._asks_first:
                asking = num_queries = batch.num_sentences
            elif i == last and self._num_asking is not None:
                asking = self._num_asking
            yield layer, self._num_rows, asking, 4.0 * num_queries * batch.length * hidden

    def forward(self) -> float:
        total = 2.0 * self._num_rows * self.shape.mapping.total
        for layer, rows, asking, attention in self._layers():
            total += attention + 2.0 * (rows * layer.keys.total + asking * layer.asking.total)
        return total

    def backward(self, of_weights: bool, of_input: bool) -> float:
        """``of_input``: whether a gradient by X is wanted. Layers below the first that wants one do nothing."""
        mapping, wanted = self.shape.mapping, of_input
        total = 2.0 * self._num_rows * _products(mapping, of_weights, wanted)
        wanted = wanted or (of_weights and mapping.trained > 0)
        for layer, rows, asking, attention in self._layers():
            is_trained = of_weights and layer.is_trained
            if wanted or is_trained:
                total += 2.0 * attention + 2.0 * rows * _products(layer.keys, of_weights, wanted)
                total += 2.0 * asking * _products(layer.query, of_weights, wanted)
                total += 2.0 * asking * _products(layer.rest, of_weights, True)
            wanted = wanted or is_trained
        return total

    def outer(self, of_input: bool) -> float:
        return self.forward() + self.backward(True, of_input)


def _products(count: Count, of_weights: bool, of_input: bool) -> int:
    return (count.total if of_input else 0) + (count.trained if of_weights else 0)


class StepCosts:
    """Parameters and FLOPs of the step that a config asks for.

    Args:
        model_config: the transformers configuration of ``config.encoder.model``.
        generator_config: that of the generator of replaced token detection, where it is a model.
        victim_config: that of a frozen classifier whose probabilities the loss has.
    """

    def __init__(self, config: Config, model_config, generator_config=None, victim_config=None):
        self.config, self.search = config, config.perturbation.resolve()
        # Adapters and some heads draw their weights. A run that measures itself must not draw from its own numbers.
        with torch.random.fork_rng(devices=[]):
            self.encoder = shape_of(config.encoder, model_config)
            self.objective = _objective_of(config, self.encoder)
        self.needs = self.objective.needs
        self.head = Count.of(self.objective.parameters())
        self._head_matrices = matrices(self.objective.heads())
        self.has_detection = self.needs.detection is not None
        self.generator: Optional[ModelShape] = None
        self.generator_head = 0
        if generator_config is not None:
            self._measure_generator(generator_config)
        self.victim = None if victim_config is None else measure(on_meta(victim_config))

    def _measure_generator(self, generator_config) -> None:
        model = on_meta(generator_config, of_language_model=True)
        self.generator = measure(model.base_model)
        of_base = {id(module) for module in model.base_model.modules()}
        linear = [m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in of_base]
        self.generator_head = sum(module.weight.numel() for module in linear)

    @property
    def discriminator(self) -> Count:
        """Parameters of D, a copy of the encoder, and of its head."""
        if not self.has_detection:
            return Count()
        of_head = self.encoder.head_parameters_of_detection
        return self.encoder.parameters + Count(of_head, of_head)

    @property
    def num_generator_parameters(self) -> int:
        """Frozen, outside DeepSpeed. The head's matrix is its word embeddings; what little else it has is left out."""
        return 0 if self.generator is None else self.generator.parameters.total

    @property
    def parameters(self) -> Count:
        """All that DeepSpeed holds: encoder, heads, D, a second encoder."""
        return self.encoder.parameters + self.head + self.discriminator + self.second_encoder

    @property
    def second_encoder(self) -> Count:
        return self.encoder.parameters if self.needs.second_network else Count()

    @property
    def num_other_passes(self) -> int:
        """Of other texts of the sentences, and the second network's of all texts."""
        num_variants = len(self.needs.variants)
        of_second = self.needs.second_network * (self.needs.clean + num_variants)
        return num_variants + of_second + self.num_text_views

    @property
    def num_text_views(self) -> int:
        """Views of chosen proposals: of edits that keep the meaning, and of flips."""
        return (self.needs.text is not None) + self.needs.flip

    @property
    def num_compared_texts(self) -> int:
        """Proposals of a sentence that pass without a graph, for one to be chosen; a lone one is not compared."""
        text = self.config.perturbation.text
        num_proposals = text.num_proposals if self.needs.text is not None and text.choose == "worst" else 1
        return sum(count for count in (num_proposals, text.num_flips if self.needs.flip else 1) if count > 1)

    @property
    def num_clean_views(self) -> int:
        """z, z+ (drawn or given), and a given hard negative."""
        return self.needs.clean + self.num_positive_views

    @property
    def num_positive_views(self) -> int:
        """Views that z is compared with: z+ (drawn or given), and a given hard negative."""
        return 1 + (self.config.data.negative_field is not None) if self.needs.positive else 0

    @property
    def num_key_sets(self) -> int:
        """Sets of vectors that a step's loss compares queries with; under reuse free each pass has z_adv anew."""
        num_passes = self.search.num_steps if self.search.reuse == "free" else 1
        has_adversarial_keys = self.needs.adversarial is not None and self.needs.adversarial.keys
        has_text_keys = self.needs.text is not None and self.needs.text.keys
        num_keys = self.num_positive_views + num_passes * has_adversarial_keys + has_text_keys
        return num_keys + self.objective.num_gathered

    @property
    def num_outer_views(self) -> int:
        """Passes whose graphs are alive together when the backward pass begins; D's is counted apart."""
        num_clean = self.num_clean_views + self.num_other_passes
        return num_clean + (self.needs.adversarial is not None and self.search.reuse != "free")

    @property
    def has_clean_graph(self) -> bool:
        """Whether the first inner gradient comes from z's own graph."""
        search = self.search
        return (
            self.needs.adversarial is not None
            and self.needs.clean
            and search.reuse in ("exact", "adaptive")
            and search.sigma == 0
            and not search.use_eta
            and (search.inner_dropout == "frozen" or self.encoder.dropout == 0)
            and self.encoder.embeddings.trained > 0
            and self.config.engine.compile == "none"
            and self.config.engine.zero_stage < 3
            and self.config.train.micro_batch_size is None
            and not self.config.engine.checkpoint_activations
        )

    def flops(
        self,
        batch: BatchSize,
        num_gradients: Optional[int] = None,
        is_probe: Optional[bool] = None,
        num_masked: Optional[float] = None,
    ) -> dict[str, float]:
        """FLOPs of a batch by part; parts that do not run are left out.

        Args:
            num_gradients: reuse adaptive: how many a step takes; None: 1, the fewest.
            is_probe: reuse adaptive: whether this step probes; None: a probe's share of ``probe_every`` steps.
            num_masked: tokens that the generator refills; None: those that its mask ratio takes on average.
        """
        is_cls = self.config.encoder.pooling == "cls"
        is_cls = is_cls and not self.needs.tokens
        passes, graded = Passes(self.encoder, batch, is_cls), self.encoder.embeddings.trained > 0
        head = 2.0 * batch.num_sentences * self._head_matrices.total
        outer = passes.outer(graded) + 3 * head
        shape, is_free = self.encoder, self.needs.adversarial is not None and self.search.reuse == "free"
        sizes = LossSizes(
            batch.num_sentences,
            batch.num_tokens,
            shape.hidden_size,
            shape.embedding_size,
            shape.vocab_size,
            num_passes=self.search.num_steps if is_free else 1,
        )
        found = {"clean views": self.num_clean_views * outer}
        # Other texts are taken to be as long as the sentences.
        num_variants = len(self.needs.variants)
        if num_variants:
            found["other texts"] = num_variants * outer
        if self.needs.second_network:
            found["second network"] = (self.num_other_passes - num_variants - self.num_text_views) * outer
        if self.num_text_views:
            found["text views"] = self.num_text_views * outer
        if self.needs.text is not None and self.config.perturbation.text.choose == "gradient":
            inner = 2 * self.objective.inner_loss_flops(sizes)
            found["text search"] = passes.forward() + passes.backward(False, True) + 2 * head + inner
        if self.num_compared_texts:
            compared = passes.forward() + head + self.objective.inner_loss_flops(sizes)
            found["text search"] = found.get("text search", 0.0) + self.num_compared_texts * compared
        if self.needs.adversarial is not None:
            # Passes whose token states are read run their last layer at all tokens.
            reads_tokens = self.needs.adversarial.tokens
            attacked_passes = Passes(self.encoder, batch, False) if reads_tokens else passes
            forward, by_input = passes.forward() + head, passes.backward(False, True) + head
            if is_free:
                outer_of_x = attacked_passes.outer(True) + 3 * head
                found["passes that search and train"] = self.search.num_steps * outer_of_x
            else:
                attacked = self.objective.inner_loss_flops(sizes)
                gradient = forward + by_input + 2 * attacked
                reference = self.num_clean_views * forward + passes.backward(True, True) + 2 * head + 3 * attacked
                if self.needs.adversarial.anchor:
                    gradient, reference = gradient + head, reference + head
                found["inner steps"] = self._inner(gradient, reference, forward, num_gradients, is_probe)
                if self.needs.adversarial.anchor and self.search.inner_dropout == "off" and self.encoder.dropout > 0:
                    # The clean pass has masks that inner steps have not.
                    found["inner steps"] += passes.forward()
                found["adversarial view"] = attacked_passes.outer(graded) + 3 * head
        found.update(self.objective.loss_flops(sizes))
        if self.needs.average:
            found["average model"] = passes.forward() + head
        if self.needs.original:
            found["original encoder"] = passes.forward()
        if self.victim is not None:
            found["victim"] = Passes(self.victim, batch, is_cls).forward()
        if self.has_detection:
            found["replaced token detection"] = self._detection(batch, num_masked)
        return found

    def _inner(
        self,
        gradient: float,
        reference: float,
        forward: float,
        num_gradients: Optional[int],
        is_probe: Optional[bool],
    ) -> float:
        search = self.search
        num_steps = search.num_steps
        points = 2 if search.gradient == "separate" and search.rho not in (0, 1) else 1
        if search.reuse == "none":
            return num_steps * points * (2 if search.use_eta else 1) * reference
        spared = forward * min(num_steps, 1) if self.has_clean_graph else 0.0
        whole = num_steps * points * gradient
        if search.reuse != "adaptive" or num_steps == 0:
            return whole - spared
        taken = min(num_steps, 1 if num_gradients is None else num_gradients) * points * gradient
        share = 1 / self.config.perturbation.probe_every if is_probe is None else float(is_probe)
        # A probe evaluates the loss where each number of gradients leads.
        return share * (whole + num_steps * forward) + (1 - share) * taken - spared

    def _detection(self, batch: BatchSize, num_masked: Optional[float]) -> float:
        head = 2.0 * batch.num_tokens * 2 * self.encoder.hidden_size
        total = Passes(self.encoder, batch, False).outer(True) + 3 * head
        if self.generator is not None:
            if num_masked is None:
                # Every sentence has two special tokens, which are never masked, and at least one masked token.
                ratio = self.needs.detection.mask_ratio
                num_masked = max(batch.num_sentences, ratio * (batch.num_tokens - 2 * batch.num_sentences))
            total += Passes(self.generator, batch, False, num_masked).forward()
            total += 2.0 * num_masked * self.generator_head
        return total

    def recomputed(self, batch: BatchSize, num_ranks: int = 1) -> float:
        """FLOPs of forwards that are run again, because of micro-batches or of checkpointed activations.

        They take time and are no part of ``flops``: utilisation counts what the model needs.
        """
        is_checkpointed = self.config.engine.checkpoint_activations
        times = is_cut_up(self.config, batch, num_ranks) + is_checkpointed
        passes = Passes(self.encoder, batch, self.config.encoder.pooling == "cls")
        total = times * self.num_outer_views * passes.forward()
        if self.has_detection:
            total += times * Passes(self.encoder, batch, False).forward()
        if is_checkpointed and self.needs.adversarial is not None:
            gradients = 1 if self.search.reuse == "adaptive" else self.search.num_steps
            total += gradients * passes.forward()
        return total


def _objective_of(config: Config, shape: ModelShape) -> Objective:
    """The objective bound to an encoder that is not there, on the meta device where its constructor can do without
    numbers."""
    objective = resolve_objective(config.objective)
    given = (shape.hidden_size,)
    if objective.needs.labels:
        # Of how many classes only the data know, where no names are given.
        num_classes = len(config.data.label_names or "01")
        with torch.device("meta"):
            given = (*given, make_head(config.encoder.pooling, shape.hidden_size, num_classes))
    make = partial(objective, *given, **config.objective_options)
    try:
        with torch.device("meta"):
            made = make()
    except (RuntimeError, NotImplementedError):
        made = make()
    word_embeddings = torch.empty(shape.vocab_size, shape.embedding_size, device="meta")
    made.bind(SimpleNamespace(word_embeddings=word_embeddings))
    return made


def is_cut_up(config: Config, batch: BatchSize, num_ranks: int) -> bool:
    """Whether a rank's share passes through the encoder in more than one micro-batch."""
    size = config.train.micro_batch_size
    return size is not None and size < -(-batch.num_sentences // num_ranks)


def find_costs(config: Config, model_config=None) -> StepCosts:
    """The costs of a config whose models are found by name; reads their configurations and no weights."""
    from fastadv.encoder.weights.source import find_model

    if model_config is None:
        model_config = find_model(config.encoder.model).config
    generator = rtd_generator_of(config)
    generator_config = None if generator in (None, "unigram") else find_model(generator).config
    victim = config.objective_options.get("victim")
    return StepCosts(config, model_config, generator_config, None if victim is None else find_model(victim).config)


def step_flops(
    config: Config,
    model_config,
    num_tokens: float,
    num_sentences: int,
    length: Optional[int] = None,
    num_gradients: Optional[int] = None,
) -> float:
    """FLOPs that the model needs for a batch of so many real tokens and sentences, over all ranks.

    Linear in both but for the contrastive losses, so the sums over an optimizer step's batches may be given.

    Args:
        model_config: the transformers configuration of the encoder (``encoder.hf.config``).
        length: tokens of the longest sentence; None: ``encoder.max_length``.
        num_gradients: reuse adaptive: as logged; None: 1.
    """
    key = repr(config), model_config.to_json_string(use_diff=False)
    if key not in _known:
        _known[key] = find_costs(config, model_config)
    batch = BatchSize(num_sentences, num_tokens, config.encoder.max_length if length is None else length)
    return sum(_known[key].flops(batch, num_gradients).values())


_known: dict[tuple[str, str], StepCosts] = {}
"""A loop asks every step, and a model is measured once."""

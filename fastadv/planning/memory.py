"""What a GPU of a run must hold, by ZeRO stage (docs/scaling.md).

With P parameters, of which P_t are trained, W ranks, c bytes a weight (2 for bf16 at stages 1 to 3, else 4):

    stage      weights          gradients   masters     AdamW's means   reduction buffer
    0          4 P              4 P_t       none        8 P_t           4 b, behind the activations
    1          c P              c P_t       4 P_t / W   8 P_t / W       c b
    2          c P              c P_t / W   4 P_t / W   8 P_t / W       c b
    3          c P / W + c P    c P_t / W   4 P_t / W   8 P_t / W       c b

At stage 3 the second c P are the weights fetched for the length of a step, so that inner steps fetch none. b is
DeepSpeed's bucket, 5e8 elements, or P_t where those are fewer. DeepSpeed keeps masters in fp32 runs too. bf16 at stage
0 has copies of the weights behind the embeddings, and their gradients, 2 bytes each. The eta table V is whole on every
rank.

Activations are what the packed path keeps for the backward pass, tensor by tensor; the padded path keeps a fifth more.
"""

from dataclasses import dataclass, replace
from typing import Optional

from fastadv.distributed.zero import MOST_REDUCED_AT_ONCE
from fastadv.planning.costs import BatchSize, StepCosts, is_cut_up
from fastadv.planning.wire import bytes_of_weights


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, and beside it on its host."""

    weights: float
    gradients: float
    optimizer: float
    """AdamW's means, and master weights"""
    eta_table: float
    generator: float
    """or the victim of soft targets, or the encoder before training: what is frozen"""
    buffers: float
    activations: float
    on_host: float = 0.0

    @property
    def state(self) -> float:
        """What depends on the model alone, not on the batch."""
        return self.weights + self.gradients + self.optimizer + self.eta_table + self.generator

    @property
    def total(self) -> float:
        return self.state + self.buffers + self.activations


def memory(
    costs: StepCosts,
    batch: BatchSize,
    num_ranks: int = 1,
    zero_stage: Optional[int] = None,
    is_fused: bool = True,
) -> Memory:
    """The memory of one rank.

    Args:
        batch: over all ranks.
        zero_stage: None: the config's.
        is_fused: attention never writes its weights down (a GPU's); False: it does (``attention: matmul``, a CPU's).
    """
    config, parameters, encoder = costs.config, costs.parameters, costs.encoder
    stage = config.engine.zero_stage if zero_stage is None else zero_stage
    width, is_half = bytes_of_weights(costs, stage), config.engine.precision == "bf16"
    total, trained = parameters.total, parameters.trained
    share = trained / num_ranks if stage > 0 else trained
    # The average model is whole on every rank.
    weights, host = width * total + 4 * total * costs.needs.average, 0.0
    if stage == 3 and config.engine.offload_parameters == "cpu":
        host = width * total / num_ranks
    elif stage == 3 and num_ranks > 1:
        weights += width * total / num_ranks
    optimizer = (8 + (4 if stage > 0 else 0)) * share
    gradients = width * (share if stage > 1 else trained)
    if config.engine.offload_optimizer == "cpu" and stage > 0:
        # Gradients go there too, in float32, to be applied there.
        host, optimizer = host + optimizer + 4 * share, 0.0
        gradients = 0.0 if stage > 1 else gradients
    if costs.needs.adversarial is not None and costs.search.reuse == "free":
        # Passes collect what they find beside what the last backward delivers.
        gradients += 4 * trained
    kept = activations(costs, batch, num_ranks, is_fused)
    buffers = width * min(trained, MOST_REDUCED_AT_ONCE)
    if stage == 0:
        # Gradients are reduced when the backward is over, in the place of its activations.
        buffers = max(0.0, buffers - kept) if num_ranks > 1 else 0.0
    if stage == 0 and is_half:
        num_copied = 1 + costs.has_detection + costs.needs.second_network
        buffers += 2 * num_copied * (encoder.body.total + encoder.body.trained)
    num_frozen = 0 if costs.victim is None else costs.victim.parameters.total
    num_frozen += encoder.parameters.total * costs.needs.original
    has_table = costs.needs.adversarial is not None and costs.search.use_eta
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        # A row's norm lies beside it.
        eta_table=4 * encoder.vocab_size * (encoder.embedding_size + 1) if has_table else 0.0,
        generator=(2 if is_half else 4) * (costs.num_generator_parameters + num_frozen),
        buffers=buffers,
        activations=kept,
        on_host=host,
    )


def activations(costs: StepCosts, batch: BatchSize, num_ranks: int = 1, is_fused: bool = True) -> float:
    """Bytes at the peak of a rank's share of a batch, beside the state: graphs, keys and perturbations."""
    config, encoder = costs.config, costs.encoder
    own = replace(batch, num_sentences=-(-batch.num_sentences // num_ranks), num_tokens=batch.num_tokens / num_ranks)
    perturbations = 0.0
    if costs.needs.adversarial is not None:
        # delta of both chains, their mix, eta, the point, its gradient.
        perturbations = 6 * 4 * own.num_tokens * encoder.embedding_size
    has_adversarial_keys = costs.needs.adversarial is not None and costs.needs.adversarial.keys
    num_sets = costs.num_positive_views + has_adversarial_keys
    keys = 2 * 4 * num_sets * batch.num_sentences * encoder.hidden_size
    is_cut = is_cut_up(config, batch, num_ranks)
    if is_cut:
        share = config.train.micro_batch_size / own.num_sentences
        own = replace(own, num_sentences=config.train.micro_batch_size, num_tokens=own.num_tokens * share)
    graph = _Graphs(costs, own, is_fused)
    of_detection = graph.of_detection() if costs.has_detection else 0.0
    if is_cut:
        # The backward runs passes again one by one, but for z and z+, which on a GPU are one.
        outer, num_waiting = max((1 + is_fused) * graph.of_view(), of_detection), 0
    else:
        outer, num_waiting = costs.num_outer_views * graph.of_view() + of_detection, costs.num_clean_views
    inner = 0.0
    if costs.needs.adversarial is not None and costs.search.reuse == "free":
        outer = inner = (costs.num_clean_views + 1) * graph.of_view()
    elif costs.needs.adversarial is not None and costs.search.num_steps > 0:
        is_full = costs.search.reuse == "none"
        inner = num_waiting * graph.of_view() + graph.of_inner_step(is_full)
    return perturbations + keys + max(outer, inner) + graph.of_layer_run_again()


class _Graphs:
    """Bytes that one pass keeps for its backward."""

    def __init__(self, costs: StepCosts, batch: BatchSize, is_fused: bool):
        self._costs, self._shape, self._batch = costs, costs.encoder, batch
        self._is_cls = costs.config.encoder.pooling == "cls" and self._shape.is_packed
        self._width = 2 if costs.config.engine.precision == "bf16" else 4
        self._is_checkpointed = costs.config.engine.checkpoint_activations
        padded = batch.num_sentences * batch.length
        self._num_rows, self._num_padded = (batch.num_tokens if self._shape.is_packed else padded), padded
        # The weights after the softmax, and those that dropout left; the fused form keeps its output instead.
        self._of_head = 0 if is_fused else 1 + (self._shape.dropout > 0)
        self._laid_out = 4 if is_fused else 3

    def _layer(self, num_rows: float, num_padded: float, is_full: bool = True) -> float:
        """Elements: layer input, context, both LayerNorms' inputs, the feed-forward's input and inner states in rows;
        query, key and value laid out by sentence. Frozen weights ask for no inputs of products."""
        shape, length = self._shape, self._batch.length
        of_row = (5 if is_full else 2) * shape.hidden_size + (2 if is_full else 1) * shape.intermediate_size
        of_place = self._laid_out * shape.hidden_size + self._of_head * shape.num_heads * length
        return num_rows * of_row + num_padded * of_place

    def _last_layer(self, is_full: bool) -> float:
        if not self._is_cls:
            return self._layer(self._num_rows, self._num_padded, is_full)
        # Keys and values of every token, the rest of first tokens.
        shape, num_sentences = self._shape, self._batch.num_sentences
        return (
            (self._num_rows if is_full else 0) * shape.hidden_size
            + 2 * self._num_padded * shape.hidden_size
            + self._layer(num_sentences, num_sentences, is_full)
        )

    def of_view(self) -> float:
        """z, z+ or z_adv: everything kept, and X in float32."""
        shape = self._shape
        if self._is_checkpointed:
            elements = self._inputs_of_layers()
        else:
            elements = (len(shape.layers) - 1) * self._layer(self._num_rows, self._num_padded) + self._last_layer(True)
        return self._width * elements + 4 * self._num_rows * shape.embedding_size

    def of_detection(self) -> float:
        """D, which reads every token's last state."""
        whole = type(self)(self._costs, self._batch, self._laid_out == 4)
        whole._is_cls = False
        return whole.of_view()

    def of_inner_step(self, is_full: bool) -> float:
        if self._is_checkpointed:
            return self._width * self._inputs_of_layers()
        last = self._last_layer(is_full)
        layers = (len(self._shape.layers) - 1) * self._layer(self._num_rows, self._num_padded, is_full)
        return self._width * (layers + last)

    def of_layer_run_again(self) -> float:
        """Where activations are checkpointed, of one layer at a time."""
        return self._width * self._layer(self._num_rows, self._num_padded) if self._is_checkpointed else 0.0

    def _inputs_of_layers(self) -> float:
        return len(self._shape.layers) * self._num_rows * self._shape.hidden_size

"""How many bytes the ranks of a run tell each other in a step (docs/scaling.md).

The *payload* of a collective is the whole tensor, once: what all ranks' parts are gathered to, or what is summed. What
a rank then *sends*, and receives, with W ranks in a ring, is (W - 1)/W of it where tensors are gathered, or summed and
scattered, and twice that where everybody gets the sum. Other algorithms send at least as much in all, in fewer turns.

    keys                all_gather   (8 + D * bytes of z) a row, for each set of keys: z+, z_adv, hard negatives
    gradients of keys   all_reduce   4 * D a row, for each set
    gradients           all_reduce at stages 0 to 2, reduce_scatter at 3: a number a trained parameter
    weights             all_gather   a number a trained parameter at stages 1 and 2, a parameter at 3
    average model       all_gather at stage 3, all_reduce in bf16 at 1 and 2: 4 a trained parameter
    eta table           all_gather   (16 + 4 * E) a word of the rank that has most different ones, times ranks

Nothing is sent in inner steps, so N has no say, but under ``reuse: free``, whose every pass has keys of its own.
``tests/ranks/test_step.py`` compares with what is handed to torch's collectives at world sizes 2 and 4.
"""

from dataclasses import dataclass
from typing import Optional

from fastadv.planning.costs import BatchSize, StepCosts

METRICS_BYTES = 512
"""about what a rank says of its metrics where a line is logged, pickled"""


@dataclass(frozen=True)
class Traffic:
    """One part of what is sent in a step."""

    part: str
    how: str
    """all_gather, all_reduce or reduce_scatter"""
    payload: float
    """bytes of the whole tensors"""

    def sent(self, num_ranks: int) -> float:
        """Bytes that each rank sends in a ring, and receives."""
        turns = 2 if self.how == "all_reduce" else 1
        return turns * self.payload * (num_ranks - 1) / num_ranks


def traffic(
    costs: StepCosts,
    batch: BatchSize,
    num_ranks: int,
    zero_stage: Optional[int] = None,
    num_words: Optional[float] = None,
) -> list[Traffic]:
    """What an optimizer step sends; nothing on one rank.

    Args:
        batch: of one of the step's batches.
        zero_stage: None: the config's.
        num_words: different tokens of the rank that has most; None: every token another one, the most there can be.
    """
    if num_ranks == 1:
        return []
    config = costs.config
    stage = config.engine.zero_stage if zero_stage is None else zero_stage
    rows = -(-batch.num_sentences // num_ranks) * num_ranks
    hidden, narrow = costs.encoder.hidden_size, bytes_of_weights(costs, stage)
    num_sets = costs.num_key_sets
    found = [
        ("row counts", "all_gather", 16 * num_ranks),
        ("keys", "all_gather", num_sets * rows * (8 + hidden * narrow)),
        ("gradients of keys", "all_reduce", num_sets * rows * hidden * 4),
    ]
    if costs.needs.adversarial is not None:
        found.append(("non-finite rows", "all_gather", 8 * rows))
        if costs.search.use_eta:
            # Each row as the rank with most words has them: its id, their count, and the sum.
            most = min(costs.encoder.vocab_size, -(-batch.num_tokens // num_ranks)) if num_words is None else num_words
            found.append(("eta table", "all_gather", num_ranks * (24 + most * (16 + 4 * costs.encoder.embedding_size))))
    found = [(part, how, size * config.train.accumulation_steps) for part, how, size in found]
    parameters = costs.parameters
    how = "reduce_scatter" if stage == 3 else "all_reduce"
    found.append(("gradients", how, parameters.trained * narrow * _num_reductions(config, stage)))
    if stage in (1, 2):
        found.append(("weights", "all_gather", parameters.trained * narrow))
    elif stage == 3:
        found.append(("weights", "all_gather", parameters.total * narrow))
    if costs.needs.average and (stage == 3 or (stage > 0 and narrow < 4)):
        # Of what is trained, in full precision; stages 1 and 2 have it whole but in bfloat16.
        found.append(("average model", "all_gather" if stage == 3 else "all_reduce", 4 * parameters.trained))
    norms = {0: 0, 1: 8, 2: 8, 3: 16}[stage]
    found.append(("losses, norms and stop", "all_reduce", 4 * config.train.accumulation_steps + norms + 8))
    found.append(("metrics", "all_gather", METRICS_BYTES * num_ranks / config.train.log_every))
    return [Traffic(part, how, float(size)) for part, how, size in found if size]


def _num_reductions(config, stage: int) -> int:
    """Stages 2 and 3 keep no whole gradients, so they reduce after every batch."""
    return config.train.accumulation_steps if stage in (2, 3) else 1


def bytes_of_weights(costs: StepCosts, zero_stage: int) -> int:
    """Of a parameter, its gradient, and an element of z, as DeepSpeed holds them."""
    return 2 if costs.config.engine.precision == "bf16" and zero_stage > 0 else 4


def bytes_sent(parts: list[Traffic], num_ranks: int) -> float:
    """Bytes that each rank sends a step."""
    return sum(part.sent(num_ranks) for part in parts)

"""What the run worker and its test share."""

from fastadv.engine import processes
from fastadv.objectives.robustsentembed import RobustSentEmbed

STAGES = ((0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16"))


class BadOnRankOne(RobustSentEmbed):
    """Its inner gradient is NaN on one rank alone."""

    def inner_loss(self, query, keys, sentence_ids):
        loss = super().inner_loss(query, keys, sentence_ids)
        return loss * float("nan") if processes.rank() == 1 else loss

"""What the searches of a batch's pieces add up to on one rank: scalars that stay on the device."""

from dataclasses import dataclass, field

from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.perturbation import Perturbation
from fastadv_kernels import row_norm, segment_norm


@dataclass
class SearchRecord:
    """What the pieces of a batch add up to, on this rank."""

    nonfinite_steps: list[Tensor] = field(default_factory=list)
    epsilon_token: list[Tensor] = field(default_factory=list)
    probes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(b, N) agreements and (N + 1,) losses, summed over sentences, after 0 to N gradients"""
    num_gradients: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _counts: dict[str, int | Tensor] = field(default_factory=dict)

    def add(self, found: Perturbation, batch: PackedBatch) -> None:
        self.nonfinite_steps.append(found.nonfinite_step)
        self.num_gradients = len(found.trace.losses)
        losses, num_rows = found.trace.losses, batch.num_sentences
        if losses:
            self._count("inner_loss", losses[0], num_rows)
            if len(losses) > 1:
                self._count("inner_gain", found.gain * num_rows, num_rows)
            elif found.trace.gradients:
                # Not where the one pass is the engine's to go back through.
                self._count("inner_gain", _slope(found), num_rows)
        for name, (total, count) in norm_sums(found, batch).items():
            self._count(name, total, count)
        self._count("delta_rms", found.delta.square().sum(), found.delta.numel())
        if found.eta is not None:
            self._count("eta_rms", found.eta.square().sum(), found.eta.numel())
            if found.epsilon_token is not None:
                self.epsilon_token.append(found.epsilon_token)

    def add_dropout(self, loss: Tensor, found: Perturbation, batch: PackedBatch) -> None:
        """``loss`` is the inner loss, summed over sentences, of the clean pass under its dropout masks."""
        self._count("dropout_gain", loss - found.trace.losses[0], batch.num_sentences)

    def _count(self, name: str, total: Tensor, count: int | Tensor) -> None:
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count

    def metrics(self) -> dict[str, Tensor]:
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        if "dropout_gain" in means:
            means["dropout_gain"] = means["dropout_gain"].abs()
        return {name: mean.sqrt() if name.endswith("_rms") else mean for name, mean in means.items()}


def _slope(found: Perturbation) -> Tensor:
    """What delta gains by the one gradient that was taken, summed over sentences."""
    return (found.trace.gradients[-1].delta[0] * found.delta).sum()


def norm_sums(found: Perturbation, batch: PackedBatch) -> dict[str, tuple[Tensor, int | Tensor]]:
    """Sums and counts of norms in the search's norm P, by the name of their mean:

    * delta_norm: over sentences, of ||delta||_P over all tokens and entries of a sentence.
    * eta_norm: over perturbed tokens, of ||eta_i||_P over E.
    """
    around = found.trace.around
    of_delta = segment_norm(found.delta, batch.cu_seqlens, around.plan.norm)
    sums = {"delta_norm": (of_delta.sum(), batch.num_sentences)}
    if found.eta is not None:
        num_tokens = batch.num_tokens if around.active is None else around.active.sum()
        sums["eta_norm"] = row_norm(found.eta, around.plan.norm).sum(), num_tokens
    return sums

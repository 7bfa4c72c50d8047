"""The dropout masks of one step: which pass drew which, and whether they are the ones METHODS.md asks for.

z, z+ and z_adv have masks of their own. Inner steps draw none with ``inner_dropout: off``, z's again with ``frozen``,
and z+'s again under ``reuse: none``. The transcription takes masks as given, so it cannot see a wrong one.
"""

import itertools
from dataclasses import dataclass
from typing import Optional

import torch


@dataclass(frozen=True)
class Drawn:
    """The masks of one step by the pass that drew them, packed over the batch."""

    clean_embedding: torch.Tensor
    clean: torch.Tensor
    positive_embedding: torch.Tensor
    positive: torch.Tensor
    inner: list
    """of all inner passes together"""
    adversarial: Optional[torch.Tensor]

    @classmethod
    def of_order(cls, masks, has_adversary):
        """From the order of the step: embed, encode for z; the same for z+; the inner passes; encode for z_adv."""
        first, inner = masks[:4], masks[4:]
        return cls(*first, inner, inner.pop() if has_adversary else None)

    def pairs(self):
        """Masks that must be independent, by what they are."""
        named = {"z": self.clean, "z+": self.positive, "z_adv": self.adversarial}
        own = [(name, mask) for name, mask in named.items() if mask is not None]
        pairs = {f"{a} and {b}": (one, other) for (a, one), (b, other) in itertools.combinations(own, 2)}
        return {"X and X+": (self.clean_embedding, self.positive_embedding), **pairs}

    def faults(self, num_inner_passes, is_frozen, repeats_keys):
        """Lines; empty where every mask is what it should be."""
        found = [f"{names} have one mask" for names, (one, other) in self.pairs().items() if torch.equal(one, other)]
        wanted = {"z's": self.clean} if is_frozen else {}
        if repeats_keys:
            wanted.update({"X+'s": self.positive_embedding, "z+'s": self.positive})
        if len(self.inner) != num_inner_passes * len(wanted):
            found.append(f"{num_inner_passes} inner passes use {len(self.inner)} masks")
        for name, mask in wanted.items():
            times = sum(torch.equal(mask, used) for used in self.inner)
            if times != num_inner_passes:
                found.append(f"{num_inner_passes} inner passes use {name} mask {times} times")
        return found

"""Projection heads: z = head(h), where contrastive losses live. Export and evaluation use h, without them."""

from torch import nn

from fastadv.errors import UserError

HEADS = ("mlp", "bn_mlp", "none")


def make_head(kind: str, hidden_size: int) -> nn.Module:
    """A fresh head (B, D) -> (B, D).

    ``mlp`` is SimCSE's Linear and tanh. ``bn_mlp`` is the projector of contrastive image models: Linear,
    batch norm, ReLU, Linear, batch norm. ``none`` is the identity.

    Raises:
        UserError: an unknown kind.
    """
    if kind == "mlp":
        return nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.Tanh())
    if kind == "bn_mlp":
        return nn.Sequential(
            # The bias of a layer before a batch norm is subtracted again by its mean.
            nn.Linear(hidden_size, hidden_size, bias=False),
            nn.BatchNorm1d(hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size, bias=False),
            # Without a scale of its own, so that the vectors the loss sees keep a fixed spread.
            nn.BatchNorm1d(hidden_size, affine=False),
        )
    if kind == "none":
        return nn.Identity()
    raise UserError(f"head {kind!r} is not one of {', '.join(HEADS)}")

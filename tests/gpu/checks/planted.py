"""Objectives with the mistakes that a GPU does not forgive, planted where a search computes its loss."""

import torch

from fastadv.objectives.sentences.robustsentembed import RobustSentEmbed


class AsksInTheSearch(RobustSentEmbed):
    """Reads a number in each inner step, for which the host waits."""

    def inner_loss(self, views):
        loss = super().inner_loss(views)
        return loss * (1 if loss.item() > 0 else 1)


class MixesDevicesInTheSearch(RobustSentEmbed):
    """Multiplies by weights that it has left on the host."""

    def inner_loss(self, views):
        return super().inner_loss(views) * torch.ones(1)


class MixesDevicesInTheStep(RobustSentEmbed):
    """Adds a term of tensors that it has left on the host."""

    def loss(self, views):
        loss, terms = super().loss(views)
        return loss + (views.pooled * torch.zeros(views.pooled.shape)).sum(), terms

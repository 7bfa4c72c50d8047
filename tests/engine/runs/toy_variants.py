"""An objective that uses all there is of other texts and of a second network; no system of anybody's."""

from dataclasses import replace

import torch.nn.functional as F

from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import EpochAttack, Needs


class TwoNetworks(ClassificationObjective):
    """Cross-entropy of both networks on sentences and fickle texts, and a pull between a few others."""

    needs = Needs(labels=True, variants=("fickle", "obstinate"), second_network=True)

    def __init__(self, hidden_size, classifier, *, second: bool = True, tokens: bool = False):
        super().__init__(hidden_size, classifier)
        self.needs = replace(self.needs, second_network=second, tokens=tokens)

    def loss(self, views):
        fickle, obstinate = views.variants["fickle"], views.variants["obstinate"]
        of_fickle = F.cross_entropy(self.classifier(fickle.pooled), views.labels, reduction="none")
        loss = self.cross_entropy(views.pooled, views) + views.masked_mean(of_fickle, fickle.is_present)
        apart = F.cosine_similarity(obstinate.pooled, views.pooled)
        loss = loss + views.masked_mean(apart, obstinate.is_present)
        if views.second is not None:
            second = self.second_classifier(views.second.variants["fickle"].pooled)
            loss = loss + views.mean(F.cross_entropy(second, views.labels, reduction="none"))
            loss = loss + views.mean((views.second.pooled - views.pooled).square().mean(dim=1))
        if self.needs.tokens:
            loss = loss + views.mean(views.tokens[views.batch.cu_seqlens[:-1].long()].square().mean(dim=1))
            loss = loss + views.mean(obstinate.tokens[obstinate.batch.cu_seqlens[1:].long() - 1].mean(dim=1))
        return loss, {"loss_fickle": of_fickle.mean().detach()}


class Found(ClassificationObjective):
    """Cross-entropy of sentences, and of what an attack made of those that have it."""

    needs = Needs(labels=True, variants=("adversarial",))

    def loss(self, views):
        loss, found = self.cross_entropy(views.pooled, views), views.variants.get("adversarial")
        if found is not None:
            losses = F.cross_entropy(self.classifier(found.pooled), views.labels, reduction="none")
            loss = loss + views.masked_mean(losses, found.is_present)
        return loss, {}


class Attacked(Found):
    """The same of texts that an attack makes at the start of every epoch but the first."""

    needs = replace(Found.needs, epoch_attack=EpochAttack(first_epoch=1))

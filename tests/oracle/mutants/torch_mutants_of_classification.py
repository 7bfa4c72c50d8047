"""Mistakes planted in the torch code of the supervised systems, by patching one function of it while a case runs."""

from contextlib import nullcontext
from dataclasses import replace
from pkgutil import resolve_name
from unittest.mock import patch

import torch


def rows_summed(mean):
    return lambda self, losses: losses.sum()


def labels_shifted(cross_entropy):
    return lambda self, pooled, views: cross_entropy(
        self, pooled, replace(views, labels=(views.labels - 1).clamp(min=0))
    )


def attack_descends(inner_loss):
    return lambda self, views: -inner_loss(self, views)


def start_of_tokens(start):
    return lambda x, batch, sigma, sizes, norm, active, kind: start(x, batch, sigma, sizes, norm, active, "token")


def attacked_view_has_no_gradient_of_x(perturbed):
    return lambda x, shift: perturbed(x.detach(), shift)


def masks_drawn_anew(again):
    return lambda self: nullcontext()


def one_sided(symmetric_kl):
    def kl(logits, others):
        log_p, log_q = logits.log_softmax(1), others.log_softmax(1)
        return (log_p.exp() * (log_p - log_q)).sum(1)

    return kl


def anchor_under_no_mask(anchor):
    def mutated(self, piece):
        with torch.no_grad():
            return self.encoder.encode(piece.x(), piece.batch, dropout=False)

    return mutated


def anchor_of_the_clean_pass(anchor):
    return lambda self, piece: piece.pooled.detach()


def average_stands_still(update):
    return lambda self: None


def average_moves_twice(update):
    return lambda self: (update(self), update(self))


def average_moves_before_the_step(logits):
    """Its logits are of the weights after one update more."""

    def mutated(self, batch, dtype):
        kept = {name: value.clone() for name, value in self.state_dict().items()}
        self.update()
        found = logits(self, batch, dtype)
        self.load_state_dict(kept)
        return found

    return mutated


def average_slows_down_late(decay):
    return lambda self, step: decay(self, step - 1)


def average_under_dropout(logits):
    def mutated(self, batch, dtype):
        encoder = self._encoder.train()
        with torch.no_grad():
            return self._head(encoder.encode(encoder.embed(batch), batch))

    return mutated


def gradient_reaches_one_side(symmetric_kl):
    return lambda logits, others: symmetric_kl(logits, others.detach())


SMARTS = ("smart-plain", "smart-no-dropout")
FREE = ("freelb-no-ball", "freelb-ball")
MUTANTS = {
    # mistake: (what it stands in for, the cases in which it must show)
    rows_summed: ("fastadv.objectives.base:Views.mean", ("fine_tuning", "adversarial_training-fgm", *FREE, *SMARTS)),
    labels_shifted: (
        "fastadv.objectives.classes.classification:Classifies.cross_entropy",
        ("fine_tuning", "adversarial_training-fgm", "scal-fgm", *FREE),
    ),
    attack_descends: (
        "fastadv.objectives.classes.classification:Classifies.inner_loss",
        ("adversarial_training-fgm", "adversarial_training-fgsm", "adversarial_training-pgd-l2", "scal-fgm", "scal-at"),
    ),
    start_of_tokens: (
        "fastadv.perturbation.chains:start_delta",
        ("adversarial_training-pgd-sentence", "adversarial_training-pgd-normal", *FREE, *SMARTS),
    ),
    attacked_view_has_no_gradient_of_x: (
        "fastadv.engine.step.micro_batch:perturbed",
        ("adversarial_training-fgm", "scal-fgm", "smart-plain"),
    ),
    masks_drawn_anew: (
        "fastadv.engine.step.dropout_replay:DropoutReplay.again",
        ("smart-plain", *FREE),
    ),
    one_sided: ("fastadv.objectives.classes.smart:symmetric_kl", SMARTS),
    gradient_reaches_one_side: ("fastadv.objectives.classes.smart:symmetric_kl", SMARTS),
    anchor_under_no_mask: ("fastadv.engine.step.step:Step._anchor", ("smart-plain",)),
    anchor_of_the_clean_pass: ("fastadv.engine.step.step:Step._anchor", ("smart-off",)),
    average_stands_still: ("fastadv.engine.step.average:AverageModel.update", ("smart-moving",)),
    average_moves_twice: ("fastadv.engine.step.average:AverageModel.update", ("smart-moving",)),
    average_moves_before_the_step: ("fastadv.engine.step.average:AverageModel.logits", ("smart-moving",)),
    average_slows_down_late: ("fastadv.objectives.classes.smart:SMART.decay_of_average", ("smart-moving",)),
    average_under_dropout: ("fastadv.engine.step.average:AverageModel.logits", ("smart-plain",)),
}


def planted(mutant):
    owner, _, name = MUTANTS[mutant][0].rpartition(":")
    owner, name = (f"{owner}:{name.rpartition('.')[0]}", name.rpartition(".")[2]) if "." in name else (owner, name)
    target = resolve_name(owner)
    return patch.object(target, name, mutant(getattr(target, name)))

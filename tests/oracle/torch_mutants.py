"""Mistakes planted in the torch code itself, by patching one function of it while a case runs.

A mutant makes the mistaken function from the right one; `MUTANTS` says which function it stands in for, and
in which cases the mistake must show.
"""

from contextlib import nullcontext
from dataclasses import replace
from pkgutil import resolve_name
from unittest.mock import patch

import torch

from fastadv_kernels import direction, project

from .numpy_mutants import BASE, of_every_norm


def pgd_descends(step):
    return lambda delta, grad, *rest: step(delta, -grad, *rest)


def eta_scaled_before(step):
    return lambda eta, grad, batch, sizes, norm, scaling: step(eta, grad, batch, sizes, norm, "before")


def rho_swapped(mix):
    return lambda pgd, fgsm, rho: mix(pgd, fgsm, 1 - rho)


def special_tokens_in_sizes(sizes):
    return lambda x, batch, config, active=None: sizes(x, batch, config, None)


def fgsm_takes_pgds_step(step):
    return lambda delta, grad, batch, sizes, norm: step(delta, grad, batch, replace(sizes, beta=sizes.alpha), norm)


def projection_skipped(step):
    return lambda delta, grad, cu_seqlens, size, epsilon, norm: step(delta, grad, cu_seqlens, size, None, norm)


def norm_over_batch(_):
    def step(delta, grad, cu_seqlens, size, epsilon, norm):
        whole = torch.tensor([0, len(grad)], dtype=torch.int32)
        by_token = size.repeat_interleave(cu_seqlens.diff().long())[:, None]
        return project(delta + by_token * direction(grad, norm, whole), epsilon, norm, cu_seqlens)

    return step


def direction_by_token(_):
    def step(delta, grad, cu_seqlens, size, epsilon, norm):
        by_token = size.repeat_interleave(cu_seqlens.diff().long())[:, None]
        return project(delta + by_token * direction(grad, norm), epsilon, norm, cu_seqlens)

    return step


def start_unprojected(project_to_ball):
    return lambda x, epsilon, norm, cu_seqlens=None: project_to_ball(x, None, norm, cu_seqlens)


def inner_loss_is_mean(inner_loss):
    return lambda self, query, keys, sentence_ids: inner_loss(self, query, keys, sentence_ids) / len(query)


def positives_off_by_one_row(info_nce):
    return lambda query, keys, **options: info_nce(query, keys.roll(1, dims=-2), **options)


def duplicates_unmasked(info_nce):
    return lambda query, keys, **options: info_nce(query, keys, **{**options, "query_ids": None, "key_ids": None})


def table_accumulated(_):
    def write(table, ids, sums, counts):
        table[ids] += sums / counts[:, None]

    return write


def delta_contains_eta(search):
    def mutated(*args, **kwargs):
        found = search(*args, **kwargs)
        return replace(found, delta=found.delta + found.eta)

    return mutated


def lambda_term_dropped(loss):
    def mutated(self, views):
        total, terms = loss(self, views)
        return total - self.weight_adversarial * terms["loss_adversarial"], terms

    return mutated


def adversarial_view_cut_from_x(perturbed):
    return lambda x, shift: perturbed(x.detach(), shift)


def keys_without_gradient(gather_keys):
    return lambda vectors, sentence_ids: gather_keys(vectors.detach(), sentence_ids)


def positive_under_the_masks_of_z(positive_keys):
    def mutated(self, batch):
        self.encoder.forced = self.encoder.drawn[:2]
        return positive_keys(self, batch)

    return mutated


def adversarial_under_the_mask_of_z(search):
    def mutated(self, *args):
        found = search(self, *args)
        self.encoder.forced = self.encoder.drawn[1:2]
        return found

    return mutated


def adversarial_under_the_mask_of_the_positive(search):
    def mutated(self, *args):
        found = search(self, *args)
        self.encoder.forced = self.encoder.drawn[3:4]
        return found

    return mutated


def inner_steps_draw_masks(make_inner_loss):
    def mutated(self, *args):
        inner_loss, encode = make_inner_loss(self, *args), self.encoder.encode

        def with_masks(points):
            with patch.object(self.encoder, "encode", lambda x, batch, dropout=None: encode(x, batch)):
                return inner_loss(points)

        return with_masks

    return mutated


def masks_not_replayed(_):
    return lambda self: nullcontext()


FROZEN = of_every_norm("frozen-dropout")
# Masks in the wrong place are consistent numbers: what sees them is the comparison of the masks alone.
OF_MASKS = {
    positive_under_the_masks_of_z: ("fastadv.engine.step.Step._positive_keys", BASE),
    adversarial_under_the_mask_of_z: ("fastadv.engine.step.Step._search", BASE),
    adversarial_under_the_mask_of_the_positive: ("fastadv.engine.step.Step._search", BASE),
    inner_steps_draw_masks: ("fastadv.engine.step.Step._inner_loss", BASE),
    masks_not_replayed: ("fastadv.engine.step.DropoutReplay.again", FROZEN + of_every_norm("reuse-none")),
}
OF_NUMBERS = {
    pgd_descends: ("fastadv.perturbation.inner_loop.step_pgd", BASE),
    eta_scaled_before: ("fastadv.perturbation.inner_loop.step_eta", BASE),
    rho_swapped: ("fastadv.perturbation.inner_loop.mix", BASE),
    special_tokens_in_sizes: (
        "fastadv.perturbation.inner_loop.sentence_sizes",
        of_every_norm("spare-special-relative"),
    ),
    fgsm_takes_pgds_step: ("fastadv.perturbation.inner_loop.step_fgsm", BASE),
    projection_skipped: ("fastadv.perturbation.sentence.sentence_step", BASE),
    norm_over_batch: ("fastadv.perturbation.sentence.sentence_step", BASE),
    direction_by_token: ("fastadv.perturbation.sentence.sentence_step", BASE),
    start_unprojected: (
        "fastadv.perturbation.sentence.project",
        of_every_norm("start-outside-ball"),
    ),
    inner_loss_is_mean: ("fastadv.objectives.robustsentembed.RobustSentEmbed.inner_loss", BASE),
    positives_off_by_one_row: ("fastadv.objectives.contrastive.info_nce", BASE),
    duplicates_unmasked: ("fastadv.objectives.contrastive.info_nce", BASE),
    table_accumulated: ("fastadv.perturbation.token.eta_table_write", BASE),
    delta_contains_eta: ("fastadv.perturbation.Adversary.search", BASE),
    adversarial_view_cut_from_x: ("fastadv.engine.step.perturbed", BASE),
    keys_without_gradient: ("fastadv.engine.step.gather_keys", BASE),
    lambda_term_dropped: ("fastadv.objectives.robustsentembed.RobustSentEmbed.loss", BASE),
}
MUTANTS = {**OF_MASKS, **OF_NUMBERS}


def planted(mutant):
    """A context in which the torch code carries the mistake."""
    target, _ = MUTANTS[mutant]
    return patch(target, mutant(resolve_name(target)))

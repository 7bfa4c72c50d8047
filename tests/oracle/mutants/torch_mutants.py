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
from tests.oracle.mutants.numpy_mutants import BASE, of_every_norm
from tests.oracle.mutants.numpy_mutants_of_objectives import FGM, FGSM, RTD


def pgd_descends(step):
    return lambda delta, grad, *rest: step(delta, -grad, *rest)


def eta_scaled_before(step):
    return lambda eta, grad, batch, sizes, norm, scaling: step(eta, grad, batch, sizes, norm, "before")


def rho_swapped(mix):
    return lambda pgd, fgsm, rho: mix(pgd, fgsm, 1 - rho)


def special_tokens_in_sizes(sizes):
    return lambda x, batch, config, active=None: sizes(x, batch, config, None)


def fgsm_takes_pgds_step(sizes):
    def changed(*args):
        found = sizes(*args)
        return replace(found, beta=found.alpha)

    return changed


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
    return lambda self, views: inner_loss(self, views) / len(views.query)


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
    return lambda self, vectors, sentence_ids: gather_keys(self, vectors.detach(), sentence_ids)


def keys_move_with_x(inner_loss):
    """The keys keep their values and follow the query in the gradient, as undetached ones of one graph would."""

    def mutated(self, views):
        keys, query = views.positive_keys, views.query
        moving = replace(keys, vectors=keys.vectors + (query - query.detach()))
        return inner_loss(self, replace(views, positive_keys=moving))

    return mutated


def attack_step_doubled(resolve):
    return lambda self: replace(resolve(self), alpha=2.0, beta=2.0, epsilon=2 * self.epsilon)


def attack_without_dropout(resolve):
    return lambda self: replace(resolve(self), inner_dropout="off")


def attack_keeps_its_norm(resolve):
    return lambda self: replace(resolve(self), norm=self.norm)


def clean_gradient_of_another_view(gradient_at_clean):
    """The clean graph's gradient at the keys of the next row."""

    def mutated(self, x, pooled):
        self._keys = replace(self._keys, vectors=self._keys.vectors.roll(1, dims=0))
        return gradient_at_clean(self, x, pooled)

    return mutated


def some_originals_labelled_replaced(corrupt):
    def mutated(self, batch):
        corrupted = corrupt(self, batch)
        return replace(corrupted, replaced=corrupted.replaced | (corrupted.input_ids % 2 == 0))

    return mutated


def detection_cut_from_encoder(logits):
    return lambda self, corrupted, vectors, eta: logits(self, corrupted, vectors.detach(), eta)


def detection_without_eta(logits):
    return lambda self, corrupted, vectors, eta: logits(self, corrupted, vectors, None)


def detection_of_the_last_token(logits):
    """h at the last token of each sentence in place of its first."""

    def mutated(self, corrupted, vectors, eta):
        shifted = replace(corrupted)
        object.__setattr__(shifted, "cu_seqlens", torch.cat([corrupted.cu_seqlens[1:] - 1, corrupted.cu_seqlens[-1:]]))
        object.__setattr__(shifted, "token_sentence", corrupted.token_sentence)
        return logits(self, shifted, vectors, eta)

    return mutated


def positive_under_the_masks_of_z(encode_positive):
    def mutated(self, batch, *rest):
        encoder = self._step.encoder
        encoder.forced = encoder.drawn[:2]
        return encode_positive(self, batch, *rest)

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


def inner_steps_draw_masks(_):
    return lambda self, points: self._encoder.encode(points, self.batch)


def masks_not_replayed(_):
    return lambda self: nullcontext()


FROZEN = of_every_norm("frozen-dropout")
# Masks in the wrong place are consistent numbers: what sees them is the comparison of the masks alone.
OF_MASKS = {
    positive_under_the_masks_of_z: ("fastadv.engine.step.micro_batch.MicroBatch._encode_positive", BASE),
    adversarial_under_the_mask_of_z: ("fastadv.engine.step.step.Step._search", BASE),
    adversarial_under_the_mask_of_the_positive: ("fastadv.engine.step.step.Step._search", BASE),
    inner_steps_draw_masks: ("fastadv.engine.step.inner_loss.InnerLoss._pooled", BASE),
    masks_not_replayed: (
        "fastadv.engine.step.dropout_replay.DropoutReplay.again",
        FROZEN + of_every_norm("reuse-none"),
    ),
}
RTD_CLASS = "fastadv.objectives.sentences.rtd.ReplacedTokenDetection"
OF_NUMBERS = {
    keys_move_with_x: ("fastadv.objectives.sentences.contrastive.ContrastiveObjective.inner_loss", FGM + FGSM),
    attack_step_doubled: ("fastadv.config.schema.PerturbationConfig.resolve", FGM + FGSM),
    attack_without_dropout: ("fastadv.config.schema.PerturbationConfig.resolve", FGM + FGSM),
    attack_keeps_its_norm: ("fastadv.config.schema.PerturbationConfig.resolve", FGM[:1]),
    clean_gradient_of_another_view: ("fastadv.engine.step.inner_loss.InnerLoss.gradient_at_clean", (FGM[0], FGSM[0])),
    some_originals_labelled_replaced: (f"{RTD_CLASS}.corrupt", RTD),
    detection_cut_from_encoder: (f"{RTD_CLASS}.logits", RTD),
    detection_without_eta: (f"{RTD_CLASS}.logits", RTD),
    detection_of_the_last_token: (f"{RTD_CLASS}.logits", RTD),
    pgd_descends: ("fastadv_kernels.sentence_step.sentence_step_reference", BASE),
    eta_scaled_before: ("fastadv.perturbation.chains.step_eta", BASE),
    rho_swapped: ("fastadv.perturbation.chains.mix", BASE),
    special_tokens_in_sizes: (
        "fastadv.perturbation.search.sentence_sizes",
        of_every_norm("spare-special-relative"),
    ),
    fgsm_takes_pgds_step: ("fastadv.perturbation.search.sentence_sizes", BASE),
    projection_skipped: ("fastadv_kernels.sentence_step.sentence_step_reference", BASE),
    norm_over_batch: ("fastadv_kernels.sentence_step.sentence_step_reference", BASE),
    direction_by_token: ("fastadv_kernels.sentence_step.sentence_step_reference", BASE),
    start_unprojected: (
        "fastadv.perturbation.sentence.project",
        of_every_norm("start-outside-ball"),
    ),
    inner_loss_is_mean: ("fastadv.objectives.sentences.robustsentembed.RobustSentEmbed.inner_loss", BASE),
    positives_off_by_one_row: ("fastadv.objectives.sentences.contrastive.info_nce", BASE),
    duplicates_unmasked: ("fastadv.objectives.sentences.contrastive.info_nce", BASE),
    table_accumulated: ("fastadv.perturbation.token.eta_table_write", BASE),
    delta_contains_eta: ("fastadv.perturbation.Adversary.search", BASE),
    adversarial_view_cut_from_x: ("fastadv.engine.step.micro_batch.perturbed", BASE),
    keys_without_gradient: ("fastadv.engine.step.gather.GlobalBatch.gather_keys", BASE),
    lambda_term_dropped: ("fastadv.objectives.sentences.robustsentembed.RobustSentEmbed.loss", BASE),
}
MUTANTS = {**OF_MASKS, **OF_NUMBERS}


def planted(mutant):
    """A context in which the torch code carries the mistake."""
    target, _ = MUTANTS[mutant]
    return patch(target, mutant(resolve_name(target)))

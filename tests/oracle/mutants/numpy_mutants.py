"""The transcription with one plausible mistake each: what a comparison must not let pass.

`MUTANTS` names the cases in which each mistake must show; where one does not, the comparison is blind.
"""

from dataclasses import replace

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.sentences.ball import direction, norm_of, project
from tests.oracle.sentences.cases import NORMS
from tests.oracle.sentences.contrastive import contrastive_mean
from tests.oracle.transcription import RobustSentEmbed, added


class GradientWithoutEta(RobustSentEmbed):
    def gradients(self, x, delta_pgd, delta_fgsm, eta, batch, keys, masks):
        zeros = [np.zeros_like(e) for e in eta]
        return super().gradients(x, delta_pgd, delta_fgsm, zeros, batch, keys, masks)


class GradientAtCleanPoint(RobustSentEmbed):
    def gradients(self, x, delta_pgd, delta_fgsm, eta, batch, keys, masks):
        zeros = [np.zeros_like(e) for e in eta]
        return super().gradients(x, zeros, zeros, zeros, batch, keys, masks)


class DescendingGradient(RobustSentEmbed):
    def inner_gradient(self, *args):
        return [-g for g in super().inner_gradient(*args)]


class GradientWithoutTokenMixing(RobustSentEmbed):
    """The gradient of each token with the others' embeddings held constant in the mixing term."""

    def inner_gradient(self, points, batch, keys, masks):
        kept = self.parameters
        self.parameters = {**kept, "mixing": np.zeros_like(kept["mixing"])}
        try:
            return super().inner_gradient(points, batch, keys, masks)
        finally:
            self.parameters = kept


class RhoSwapped(RobustSentEmbed):
    def chain_weights(self):
        return super().chain_weights()[::-1]


class EtaFollowsPgdGradient(RobustSentEmbed):
    def gradients(self, *args):
        pgd, fgsm, _ = super().gradients(*args)
        return pgd, fgsm, pgd


class EtaTakesAShareOfTheSumOfNorms(RobustSentEmbed):
    def token_step(self, sentence, eta, gradient, size):
        moved = eta + size.gamma * np.array([direction(g, self.options.norm) for g in gradient])
        total = sum(norm_of(row, self.options.norm) for row in moved) or 1.0
        return np.array([self.project_token(norm_of(row, self.options.norm) / total * row, size) for row in moved])


class EtaDirectionBySentence(RobustSentEmbed):
    def token_step(self, sentence, eta, gradient, size):
        scale = norm_of(gradient, self.options.norm) or 1.0
        rows = np.array([norm_of(g, self.options.norm) for g in gradient])
        slow = [
            super(EtaDirectionBySentence, self).token_step(sentence, eta, gradient, replace(size, gamma=g))
            for g in size.gamma * rows / scale
        ]
        return np.array([slow[i][i] for i in range(len(eta))])


class EtaScaledBefore(RobustSentEmbed):
    def token_step(self, sentence, eta, gradient, size):
        kept = self.options
        self.options = replace(kept, eta_scaling="before")
        try:
            return super().token_step(sentence, eta, gradient, size)
        finally:
            self.options = kept


class EtaUnprojected(RobustSentEmbed):
    def project_token(self, eta_row, size):
        return eta_row


class DeltaUnprojected(RobustSentEmbed):
    def project_delta(self, delta, size):
        return delta


class StartUnprojected(RobustSentEmbed):
    def start_delta(self, batch, uniform):
        start = super().start_delta(batch, uniform)
        self._starts = [id(d) for d in start]
        return start

    def project_delta(self, delta, size):
        return delta if id(delta) in self._starts else super().project_delta(delta, size)


class L1ProjectedRadially(RobustSentEmbed):
    def project_delta(self, delta, size):
        length = norm_of(delta, self.options.norm)
        return delta if length <= size.epsilon else delta * size.epsilon / length


class BallOfEachToken(RobustSentEmbed):
    def project_delta(self, delta, size):
        return np.array([project(row, size.epsilon, self.options.norm) for row in delta])


class NormOverBatch(RobustSentEmbed):
    def directions(self, gradients):
        lengths = [len(g) for g in gradients]
        together = direction(np.concatenate(gradients), self.options.norm)
        return np.split(together, np.cumsum(lengths)[:-1])


class DirectionByToken(RobustSentEmbed):
    def directions(self, gradients):
        return [np.array([direction(row, self.options.norm) for row in g]) for g in gradients]


class SpecialTokensInGradientNorm(RobustSentEmbed):
    """The gradient of special tokens enters the norm, though they stay where they are."""

    def keep_perturbed(self, sentence, values):
        return values

    def pgd_step(self, delta, gradients, sizes):
        steps = zip(delta, self.directions(gradients), sizes, self._batch, strict=True)
        kept = super().keep_perturbed
        return [self.project_delta(d + size.alpha * kept(s, step), size) for d, step, size, s in steps]

    def fgsm_step(self, delta, gradients, sizes):
        kept = super().keep_perturbed
        own = [kept(s, g) for s, g in zip(self._batch, gradients, strict=True)]
        return super().fgsm_step(delta, own, sizes)

    def start_delta(self, batch, uniform):
        self._batch = batch
        kept = super().keep_perturbed
        return [kept(s, d) for s, d in zip(batch, super().start_delta(batch, uniform), strict=True)]

    def start_eta(self, batch):
        kept = super().keep_perturbed
        return [kept(s, e) for s, e in zip(batch, super().start_eta(batch), strict=True)]


class SpecialTokensInRms(RobustSentEmbed):
    def token_rows_of_sizes(self, sentence, x):
        return x


class PaddingInSizes(RobustSentEmbed):
    """RMS and n over the padded length, padding being zeros."""

    def token_rows_of_sizes(self, sentence, x):
        rows = super().token_rows_of_sizes(sentence, x)
        return np.concatenate([rows, np.zeros((toy_encoder.LONGEST - len(rows), x.shape[1]))])


class TokenRadiusOverSentence(RobustSentEmbed):
    def radii(self, sentence, x):
        epsilon, _ = super().radii(sentence, x)
        return epsilon, epsilon


class FgsmTakesPgdsStep(RobustSentEmbed):
    def fgsm_step(self, delta, gradients, sizes):
        return super().fgsm_step(delta, gradients, [replace(size, beta=size.alpha) for size in sizes])


class FinishedChainGoesOn(RobustSentEmbed):
    def __init__(self, options, parameters, table):
        longest = max(options.num_pgd_steps, options.num_fgsm_steps)
        super().__init__(replace(options, num_pgd_steps=longest, num_fgsm_steps=longest), parameters, table)


class DeltaContainsEta(RobustSentEmbed):
    def final_delta(self, delta_pgd, delta_fgsm, eta):
        return added(super().final_delta(delta_pgd, delta_fgsm, eta), eta)


class AdversarialViewWithEta(RobustSentEmbed):
    """z_adv = f(X + delta_f + eta): seen in the loss alone."""

    def search(self, *args):
        found = super().search(*args)
        self._eta = found.eta
        return found

    def loss(self, batch, delta, views, parameters=None):
        return super().loss(batch, added(delta, self._eta), views, parameters)


class TableAccumulated(RobustSentEmbed):
    def table_row(self, word, rows):
        return self.table[word] + super().table_row(word, rows)


class TableSummed(RobustSentEmbed):
    def table_row(self, word, rows):
        return sum(rows)


class TableTakesLastPosition(RobustSentEmbed):
    def table_row(self, word, rows):
        return rows[-1]


class TableMeanOfSentenceMeans(RobustSentEmbed):
    def write_table(self, batch, eta):
        means = {}
        for sentence, eta_s in zip(batch, eta, strict=True):
            for word in sorted(set(sentence.tokens)):
                means.setdefault(word, []).append(eta_s[np.array(sentence.tokens) == word].mean(axis=0))
        for word, rows in means.items():
            self.table[word] = self.table_row(word, rows)


class SpecialTokensInTable(RobustSentEmbed):
    def write_table(self, batch, eta):
        super().write_table([replace(s, special=(False,) * s.length) for s in batch], eta)


class InnerLossIsMean(RobustSentEmbed):
    """Equivalent in every perturbation (directions and signs forget a factor); seen in the loss's value."""

    def inner_loss(self, queries, keys, batch):
        return super().inner_loss(queries, keys, batch) / len(batch)

    def inner_gradient(self, points, batch, keys, masks):
        return [g / len(batch) for g in super().inner_gradient(points, batch, keys, masks)]


class PositivesOffByOneInSearch(RobustSentEmbed):
    def search(self, x, batch, keys, uniform, masks=None):
        return super().search(x, batch, keys[1:] + keys[:1], uniform, masks)


class PositivesOffByOneInLoss(RobustSentEmbed):
    def outer_loss(self, z, z_positive, z_adversarial, ids):
        return super().outer_loss(z, z_positive[1:] + z_positive[:1], z_adversarial, ids)


class DuplicatesUnmasked(RobustSentEmbed):
    def __init__(self, options, parameters, table):
        super().__init__(replace(options, mask_duplicates=False), parameters, table)


class AdversarialNegativesDropped(RobustSentEmbed):
    def outer_loss(self, z, z_positive, z_adversarial, ids):
        kept = self.options.multi_positive
        self.options = replace(self.options, multi_positive="separate")
        try:
            return super().outer_loss(z, z_positive, z_adversarial, ids)
        finally:
            self.options = replace(self.options, multi_positive=kept)


class LambdaTermDropped(RobustSentEmbed):
    def __init__(self, options, parameters, table):
        super().__init__(replace(options, weight_adversarial=0.0), parameters, table)


class LambdaFactorDropped(RobustSentEmbed):
    def __init__(self, options, parameters, table):
        super().__init__(replace(options, weight_adversarial=1.0), parameters, table)


class AdversarialAnchorsAmongThemselves(RobustSentEmbed):
    """lambda_1's term with z for z+ as the key."""

    def outer_loss(self, z, z_positive, z_adversarial, ids):
        o = self.options
        right = contrastive_mean(z_adversarial, [z_positive], ids, o.temperature, "sum", o.mask_duplicates)
        wrong = contrastive_mean(z_adversarial, [z], ids, o.temperature, "sum", o.mask_duplicates)
        return super().outer_loss(z, z_positive, z_adversarial, ids) + o.weight_adversarial * (wrong - right)


def of_every_norm(name):
    return tuple(f"{norm}-{name}" for norm in NORMS)


BASE = of_every_norm("after-shared-rho0.3")
SEPARATE = of_every_norm("after-separate-rho0.3")
MUTANTS = {
    DescendingGradient: BASE,
    GradientWithoutEta: BASE,
    GradientAtCleanPoint: BASE,
    GradientWithoutTokenMixing: BASE,
    RhoSwapped: BASE,
    EtaFollowsPgdGradient: SEPARATE,
    EtaTakesAShareOfTheSumOfNorms: BASE,
    EtaDirectionBySentence: BASE,
    EtaScaledBefore: BASE,
    EtaUnprojected: of_every_norm("own-token-ball"),
    DeltaUnprojected: BASE,
    StartUnprojected: of_every_norm("start-outside-ball"),
    L1ProjectedRadially: ("l1-after-shared-rho0.3",),
    BallOfEachToken: ("l2-after-shared-rho0.3", "l1-after-shared-rho0.3"),
    NormOverBatch: BASE,
    DirectionByToken: BASE,
    SpecialTokensInGradientNorm: of_every_norm("spare-special"),
    SpecialTokensInRms: of_every_norm("spare-special-relative"),
    PaddingInSizes: of_every_norm("relative"),
    TokenRadiusOverSentence: ("l2-relative", "l1-relative"),
    FgsmTakesPgdsStep: BASE,
    FinishedChainGoesOn: BASE,
    DeltaContainsEta: BASE,
    AdversarialViewWithEta: BASE,
    TableAccumulated: BASE,
    TableSummed: BASE,
    TableTakesLastPosition: BASE,
    TableMeanOfSentenceMeans: BASE,
    SpecialTokensInTable: of_every_norm("spare-special"),
    InnerLossIsMean: BASE,
    PositivesOffByOneInSearch: BASE,
    PositivesOffByOneInLoss: BASE,
    DuplicatesUnmasked: BASE,
    AdversarialNegativesDropped: BASE,
    LambdaTermDropped: BASE,
    LambdaFactorDropped: BASE,
    AdversarialAnchorsAmongThemselves: BASE,
}

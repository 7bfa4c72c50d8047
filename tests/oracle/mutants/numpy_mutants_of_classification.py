"""The transcriptions of the supervised systems with one plausible mistake each.

`MUTANTS` names the cases of `classification_cases.py` in which each mistake must show.
"""

from dataclasses import replace

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.classes.classification import (
    NO_MASKS,
    AdversarialTraining,
    FineTuning,
    FreeLB,
    cross_entropy_gradient,
    log_softmax,
)
from tests.oracle.classes.scal import SCAL, SCALWithoutAttack, SCALWithoutContrast
from tests.oracle.classes.smart import SMART, symmetric_kl
from tests.oracle.sentences.ball import direction, project
from tests.oracle.transcription import added


class SumOverRows(FineTuning):
    def loss(self, batch, *args, **kwargs):
        return len(batch) * super().loss(batch, *args, **kwargs)


class LabelsShifted(FineTuning):
    """Counted from 1."""

    def loss(self, batch, *args, **kwargs):
        shifted = [replace(sentence, label=max(sentence.label - 1, 0)) for sentence in batch]
        return super().loss(shifted, *args, **kwargs)


class WithoutDropout(FineTuning):
    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        return super().loss(batch, delta, NO_MASKS, parameters)


class WeightsSwapped(AdversarialTraining):
    def combined(self, clean, attacked):
        return super().combined(attacked, clean)


class WeightsAddUpToMore(AdversarialTraining):
    def combined(self, clean, attacked):
        return clean + (1 - self.options.weight_clean) * attacked


class Descends(AdversarialTraining):
    """The attack lowers cross-entropy."""

    def gradient_by_logits(self, logits, sentence, row, keys):
        return -cross_entropy_gradient(logits, sentence.label)


class AttackTowardsTheFirstClass(AdversarialTraining):
    def gradient_by_logits(self, logits, sentence, row, keys):
        return cross_entropy_gradient(logits, 0)


class AttackedUnderTheCleanMask(AdversarialTraining):
    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        return super().loss(batch, delta, replace(views, adversarial=views.clean), parameters)


class AttackedUnderNoMaskInTheSearch(AdversarialTraining):
    def search(self, x, batch, keys, uniform, masks=None):
        return super().search(x, batch, keys, uniform, None)


class FgmOverAllTokensOfTheBatch(AdversarialTraining):
    def inner_gradient(self, *args):
        gradients = super().inner_gradient(*args)
        self.whole = np.sqrt(sum((g * g).sum() for g in gradients))
        return gradients

    def attack(self, gradient, radius):
        return radius * gradient / self.whole


class PgdByToken(AdversarialTraining):
    def pgd_step(self, delta, gradients, sizes):
        steps = [np.array([direction(row, self.options.norm) for row in g]) for g in gradients]
        moved = [d + size.alpha * step for d, step, size in zip(delta, steps, sizes, strict=True)]
        return [self.project_delta(d, size) for d, size in zip(moved, sizes, strict=True)]


class PgdByItsSign(AdversarialTraining):
    def pgd_step(self, delta, gradients, sizes):
        moved = [d + size.alpha * np.sign(g) for d, g, size in zip(delta, gradients, sizes, strict=True)]
        return [self.project_delta(d, size) for d, size in zip(moved, sizes, strict=True)]


class OneStepMore(AdversarialTraining):
    def num_steps(self):
        return super().num_steps() + 1

    def search(self, *args):
        kept, self.options = self.options, replace(self.options, num_pgd_steps=self.options.num_pgd_steps + 1)
        try:
            return super().search(*args)
        finally:
            self.options = kept


class MovesAfterTheLastPass(FreeLB):
    """What is left is delta after the last pass' step."""

    def step(self, batch, uniform, views=NO_MASKS):
        result = super().step(batch, uniform, views)
        x = self.embedded(batch, views.clean)
        last = result.found.delta
        gradients = self.inner_gradient(added(x, last), batch, None, views.adversarial)
        sizes = [self.sizes(sentence, x_s) for sentence, x_s in zip(batch, x, strict=True)]
        return replace(result, found=replace(result.found, delta=self.pgd_step(last, gradients, sizes)))


class LastPassAlone(FreeLB):
    def loss(self, batch, delta, *args, **kwargs):
        return super().loss(batch, delta[-1:], *args, **kwargs)


class SumOfPasses(FreeLB):
    def loss(self, batch, delta, *args, **kwargs):
        return len(delta) * super().loss(batch, delta, *args, **kwargs)


class FirstPassIsClean(FreeLB):
    def loss(self, batch, delta, *args, **kwargs):
        return super().loss(batch, [[0 * d for d in delta[0]], *delta[1:]], *args, **kwargs)


class MovesAlongTheCleanGradient(FreeLB):
    def searched_at(self, x, delta):
        return x


class SearchedUnderNoMask(FreeLB):
    def inner_gradient(self, points, batch, keys, masks):
        return super().inner_gradient(points, batch, keys, None)


class StartScaledByTheTokenAlone(FreeLB):
    def scale_of_start(self, sentence):
        return self.options.sigma / np.sqrt(toy_encoder.EMBEDDING_SIZE)


class StartScaledByTheLongest(FreeLB):
    def scale_of_start(self, sentence):
        return self.options.sigma / np.sqrt(toy_encoder.LONGEST * toy_encoder.EMBEDDING_SIZE)


class BallClamped(FreeLB):
    def project_delta(self, delta, size):
        return project(delta, size.epsilon, "linf")


class CleanPassBeside(FreeLB):
    """L = (CE(x) + sum over passes) / (n + 1)."""

    def loss(self, batch, delta, *args, **kwargs):
        return super().loss(batch, [[0 * d for d in delta[0]], *delta], *args, **kwargs)


class CrossEntropiesAddedUp(SCAL):
    def of_vectors(self, clean, attacked, batch, parameters):
        kept = sum(self.mean_cross_entropy(h, batch, parameters) for h in (clean, attacked)) / 2
        return super().of_vectors(clean, attacked, batch, parameters) + kept


class AttackedIsTheAnchor(SCAL):
    def contrast(self, anchors, keys, batch, parameters=None):
        return super().contrast(keys, anchors, batch, parameters)


class ContrastOfPooledVectors(SCAL):
    def contrast(self, anchors, keys, batch, parameters=None):
        parameters = self.parameters if parameters is None else parameters
        bare = {name: values for name, values in parameters.items() if not name.startswith("head_")}
        return super().contrast(anchors, keys, batch, bare)


class ClassifierBehindTheHead(SCAL):
    def mean_cross_entropy(self, vectors, batch, parameters=None):
        from tests.oracle.classes.scal import project_head

        own = self.parameters if parameters is None else parameters
        return super().mean_cross_entropy(project_head(own, vectors), batch, parameters)


class ContrastUnweighted(SCAL):
    def contrast(self, *args, **kwargs):
        return super().contrast(*args, **kwargs) / self.options.weight_contrastive


class SameClassIsNoNegative(SCAL):
    """As in supervised contrastive learning."""

    def contrast(self, anchors, keys, batch, parameters=None):
        grouped = [replace(sentence, identity=sentence.label) for sentence in batch]
        return super().contrast(anchors, keys, grouped, parameters)


class HalfTheCrossEntropy(SCALWithoutAttack):
    def mean_cross_entropy(self, *args, **kwargs):
        return super().mean_cross_entropy(*args, **kwargs) / 2


class PositiveUnderTheSameMask(SCALWithoutAttack):
    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        return super().loss(batch, delta, replace(views, positive=views.clean), parameters)


class ContrastKept(SCALWithoutContrast):
    def of_vectors(self, clean, attacked, batch, parameters):
        return SCAL.of_vectors(self, clean, attacked, batch, parameters)


class OneSidedDivergence(SMART):
    def mean_symmetric_kl(self, ones, others):
        pairs = [(log_softmax(a), log_softmax(b)) for a, b in zip(ones, others, strict=True)]
        return sum((np.exp(a) * (a - b)).sum() for a, b in pairs) / len(ones)


class HalvedDivergence(SMART):
    def mean_symmetric_kl(self, ones, others):
        return super().mean_symmetric_kl(ones, others) / 2


class SquaredDifferences(SMART):
    def mean_symmetric_kl(self, ones, others):
        return sum(((a - b) ** 2).sum() for a, b in zip(ones, others, strict=True)) / len(ones)


class CleanSideIsConstant(SMART):
    """No gradient of the smoothness reaches f(X)."""

    def mean_symmetric_kl(self, ones, others):
        return sum(symmetric_kl(a, b.real) for a, b in zip(ones, others, strict=True)) / len(ones)


class SmartWithoutSmoothness(SMART):
    def __init__(self, options, parameters, table):
        super().__init__(replace(options, weight_smoothness=0.0), parameters, table)


class SmartWeightsSwapped(SMART):
    def __init__(self, options, parameters, table):
        swapped = {"weight_smoothness": options.weight_momentum, "weight_momentum": options.weight_smoothness}
        super().__init__(replace(options, **swapped), parameters, table)


class SearchedOnCrossEntropy(SMART):
    def gradient_by_logits(self, logits, sentence, row, keys):
        return cross_entropy_gradient(logits, sentence.label)


class SearchedOnOneSide(SMART):
    """KL(f(X) || f(X + delta)) alone."""

    def gradient_by_logits(self, logits, sentence, row, keys):
        return np.exp(log_softmax(logits)) - np.exp(log_softmax(keys[row]))


class CleanSideWithoutItsMask(SMART):
    def what_the_search_is_given(self, x, batch, masks):
        return super().what_the_search_is_given(x, batch, None)


class CleanSideUnderAMask(SMART):
    """Of a search without dropout the clean pass' h, which has it."""

    def step(self, batch, uniform, views=NO_MASKS):
        self.masks = views.clean
        return super().step(batch, uniform, views)

    def what_the_search_is_given(self, x, batch, masks):
        return super().what_the_search_is_given(x, batch, self.masks)


class AverageIsTheModel(SMART):
    def average_logits(self, batch):
        kept, self.average = self.average, self.parameters
        try:
            return super().average_logits(batch)
        finally:
            self.average = kept


class AverageNeverMoves(SMART):
    def commit(self):
        pass


class AverageKeepsOneDecay(SMART):
    def decay(self, t):
        return 0.99


class AverageSlowsDownAStepEarly(SMART):
    def decay(self, t):
        return super().decay(t + 1)


class AverageSlowsDownAStepLate(SMART):
    def decay(self, t):
        return super().decay(t - 1)


class AverageForgets(SMART):
    """The weights of old and new swapped."""

    def decay(self, t):
        return 1 - super().decay(t)


class AverageOfTheEncoderAlone(SMART):
    def commit(self):
        super().commit()
        for name in ("dense_weight", "dense_bias", "out_weight", "out_bias"):
            self.average[name] = self.parameters[name]


class AverageUnderDropout(SMART):
    """Of the mean over rows the average model's logits under the clean pass' masks."""

    def loss(self, batch, delta, views=NO_MASKS, parameters=None):
        self.masks = views.clean
        return super().loss(batch, delta, views, parameters)

    def average_logits(self, batch):
        x = self.embedded(batch, self.masks, self.average)
        return self.logits(self.vectors(x, self.masks, self.average), self.average)


AT = ("adversarial_training-fgm", "adversarial_training-pgd-l2")
FREE = ("freelb-no-ball", "freelb-ball")
SCALS = ("scal-fgm", "scal-fgsm")
SMARTS = ("smart-plain", "smart-no-dropout")
MUTANTS = {
    SumOverRows: ("fine_tuning",),
    LabelsShifted: ("fine_tuning",),
    WithoutDropout: ("fine_tuning",),
    WeightsSwapped: AT,
    WeightsAddUpToMore: AT,
    Descends: AT,
    AttackTowardsTheFirstClass: AT,
    AttackedUnderTheCleanMask: AT,
    AttackedUnderNoMaskInTheSearch: ("adversarial_training-fgm", "adversarial_training-fgsm"),
    FgmOverAllTokensOfTheBatch: ("adversarial_training-fgm",),
    PgdByToken: ("adversarial_training-pgd-l2", "adversarial_training-pgd-linf"),
    PgdByItsSign: ("adversarial_training-pgd-l2", "adversarial_training-pgd-linf"),
    OneStepMore: ("adversarial_training-pgd-l2",),
    MovesAfterTheLastPass: FREE,
    LastPassAlone: FREE,
    SumOfPasses: FREE,
    FirstPassIsClean: FREE,
    MovesAlongTheCleanGradient: FREE,
    SearchedUnderNoMask: FREE,
    StartScaledByTheTokenAlone: FREE,
    StartScaledByTheLongest: FREE,
    BallClamped: ("freelb-ball",),
    CleanPassBeside: FREE,
    CrossEntropiesAddedUp: SCALS,
    AttackedIsTheAnchor: SCALS,
    ContrastOfPooledVectors: SCALS,
    ClassifierBehindTheHead: SCALS,
    ContrastUnweighted: SCALS,
    SameClassIsNoNegative: SCALS,
    HalfTheCrossEntropy: ("scal-cl",),
    PositiveUnderTheSameMask: ("scal-cl",),
    ContrastKept: ("scal-at",),
    OneSidedDivergence: SMARTS,
    HalvedDivergence: SMARTS,
    SquaredDifferences: SMARTS,
    CleanSideIsConstant: SMARTS,
    SmartWithoutSmoothness: SMARTS,
    SmartWeightsSwapped: ("smart-weighed",),
    SearchedOnCrossEntropy: SMARTS,
    SearchedOnOneSide: SMARTS,
    CleanSideWithoutItsMask: ("smart-plain",),
    CleanSideUnderAMask: ("smart-off",),
    AverageIsTheModel: ("smart-moving",),
    AverageNeverMoves: ("smart-moving",),
    AverageKeepsOneDecay: ("smart-moving",),
    AverageSlowsDownAStepEarly: ("smart-moving",),
    AverageSlowsDownAStepLate: ("smart-moving",),
    AverageForgets: ("smart-moving",),
    AverageOfTheEncoderAlone: ("smart-moving",),
    AverageUnderDropout: ("smart-plain",),
}

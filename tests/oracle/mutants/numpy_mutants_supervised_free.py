"""The transcriptions of FreeLB's passes and of RAR with one plausible mistake each, and the cases that must show it."""

from dataclasses import replace

import numpy as np

from tests.oracle.classes.free_passes import FreeLB
from tests.oracle.classes.rar import RAR, gelu, layer_norm
from tests.oracle.sentences.ball import direction, project
from tests.oracle.toy_encoder import EMBEDDING_SIZE


class SumOfPasses(FreeLB):
    def over_passes(self, means):
        return sum(means)


class LastPassOnly(FreeLB):
    def over_passes(self, means):
        return means[-1]


class FirstPassLeftOut(FreeLB):
    def over_passes(self, means):
        return sum(means[1:]) / len(means)


class MovesBeforeTheFirstPass(FreeLB):
    """After every pass, the last too, and before the first: n moves."""

    def deltas(self, batch, draws):
        self.options = replace(self.options, num_passes=self.options.num_passes + 1)
        try:
            return super().deltas(batch, draws)[1:]
        finally:
            self.options = replace(self.options, num_passes=self.options.num_passes - 1)


class Descends(FreeLB):
    def gradient(self, point, label, mask):
        return -super().gradient(point, label, mask)


class GradientWithoutMask(FreeLB):
    """Dropout off where the perturbation moves."""

    def gradient(self, point, label, mask):
        return super().gradient(point, label, None)


class StartOverOneToken(FreeLB):
    """The other searches' start: / sqrt(E)."""

    def start(self, x, uniform):
        return project(self.options.sigma * uniform / np.sqrt(EMBEDDING_SIZE), self.options.epsilon, "l2")


class StartUnscaled(FreeLB):
    def start(self, x, uniform):
        return project(self.options.sigma * uniform, self.options.epsilon, "l2")


class AscentByToken(FreeLB):
    def moved(self, delta, gradient):
        steps = np.array([direction(row, "l2") for row in gradient])
        return project(delta + self.options.alpha * steps, self.options.epsilon, "l2")


class AscentUnnormalised(FreeLB):
    def moved(self, delta, gradient):
        return project(delta + self.options.alpha * gradient, self.options.epsilon, "l2")


class AscentBySign(FreeLB):
    def moved(self, delta, gradient):
        return project(delta + self.options.alpha * np.sign(gradient), self.options.epsilon, "l2")


class NeverProjected(FreeLB):
    def moved(self, delta, gradient):
        return delta + self.options.alpha * direction(gradient, "l2")


class ClippedByEntry(FreeLB):
    def moved(self, delta, gradient):
        return project(delta + self.options.alpha * direction(gradient, "l2"), self.options.epsilon, "linf")


class PassesWithoutMask(FreeLB):
    def passes(self, batch, deltas, draws, parameters):
        return super().passes(batch, deltas, replace(draws, passes=None), parameters)


class BiasLeftOut(FreeLB):
    def logits(self, parameters, h):
        return parameters["class_weight"] @ h


class NormBeforeActivation(RAR):
    """The order of the paper's prose: norm, GELU, both layers."""

    def reconstructed(self, parameters, state):
        inner = parameters["r_weight"] @ state + parameters["r_bias"]
        inner = gelu(layer_norm(inner, parameters["r_norm_weight"], parameters["r_norm_bias"]))
        return parameters["word"] @ inner + parameters["r_word_bias"]


class ActivationLeftOut(RAR):
    def reconstructed(self, parameters, state):
        inner = parameters["r_weight"] @ state + parameters["r_bias"]
        inner = layer_norm(inner, parameters["r_norm_weight"], parameters["r_norm_bias"])
        return parameters["word"] @ inner + parameters["r_word_bias"]


class ActivationByTanh(RAR):
    """GELU's usual approximation: 1e-3 from it."""

    def reconstructed(self, parameters, state):
        v = parameters["r_weight"] @ state + parameters["r_bias"]
        inner = v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))
        inner = layer_norm(inner, parameters["r_norm_weight"], parameters["r_norm_bias"])
        return parameters["word"] @ inner + parameters["r_word_bias"]


class WordBiasLeftOut(RAR):
    def reconstructed(self, parameters, state):
        return super().reconstructed(parameters, state) - parameters["r_word_bias"]


class TiedWeightIsConstant(RAR):
    """No gradient of L_R by the word embeddings that rebuild."""

    def reconstructed(self, parameters, state):
        return super().reconstructed({**parameters, "word": parameters["word"].real}, state)


class StatesAreConstant(RAR):
    """No gradient of L_R reaches the encoder."""

    def token_states(self, parameters, point, mask):
        return super().token_states(parameters, point, mask).real


class RebuildsTheFirstPass(RAR):
    def rebuilt_pass(self, deltas):
        return deltas[0]


class RebuildsTheCleanPass(RAR):
    def rebuilt_pass(self, deltas):
        return [0 * delta for delta in deltas[-1]]


class RebuildsWithoutMask(RAR):
    def token_losses(self, batch, deltas, draws, parameters):
        return super().token_losses(batch, deltas, replace(draws, passes=None), parameters)


class SpecialTokensLeftOut(RAR):
    def reduced(self, losses, batch):
        kept = [
            loss
            for of_example, example in zip(losses, batch, strict=True)
            for loss, is_special in zip(of_example, example.sentence.special, strict=True)
            if not is_special
        ]
        return sum(kept) / len(kept)


class MeanOfSentenceMeans(RAR):
    def reduced(self, losses, batch):
        return sum(sum(of_example) / len(of_example) for of_example in losses) / len(losses)


class ReconstructionSharedByPasses(RAR):
    """L_R weighed as one of the n passes."""

    def reduced(self, losses, batch):
        return super().reduced(losses, batch) / self.options.num_passes


class ReconstructionUnweighted(RAR):
    def terms(self, *arguments):
        found = super().terms(*arguments)
        return {**found, "reconstruction": found["reconstruction"] / self.options.weight_reconstruction}


FREE, MOVING, DROPPED = ("free", "free-zero-start", "free-no-dropout"), ("free", "free-zero-start"), ("free",)
RAR_CASES, RAR_DROPPED = ("rar-heavy", "rar-no-dropout"), ("rar-heavy",)
MUTANTS = {
    SumOfPasses: FREE,
    LastPassOnly: FREE,
    FirstPassLeftOut: FREE,
    MovesBeforeTheFirstPass: FREE + ("free-one-pass",),
    Descends: FREE,
    GradientWithoutMask: DROPPED,
    StartOverOneToken: ("free", "free-one-pass"),
    StartUnscaled: ("free", "free-one-pass"),
    AscentByToken: FREE,
    AscentUnnormalised: FREE,
    AscentBySign: FREE,
    NeverProjected: ("free-ball",),
    ClippedByEntry: ("free-ball",),
    PassesWithoutMask: MOVING,
    BiasLeftOut: FREE,
    NormBeforeActivation: RAR_CASES,
    ActivationLeftOut: RAR_CASES,
    ActivationByTanh: RAR_CASES,
    WordBiasLeftOut: RAR_CASES,
    TiedWeightIsConstant: RAR_CASES,
    StatesAreConstant: RAR_CASES,
    RebuildsTheFirstPass: RAR_CASES,
    RebuildsTheCleanPass: RAR_CASES,
    RebuildsWithoutMask: RAR_DROPPED,
    SpecialTokensLeftOut: RAR_CASES,
    MeanOfSentenceMeans: RAR_CASES,
    ReconstructionSharedByPasses: RAR_CASES,
    ReconstructionUnweighted: ("rar", "rar-heavy"),
}

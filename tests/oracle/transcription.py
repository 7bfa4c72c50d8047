"""RobustSentEmbed without RTD, and SimCSE, transcribed from METHODS.md sections 1-2 into numpy float64.

Written from the page alone and sharing nothing with fastadv or fastadv_kernels, so that agreement means
something. A batch is a list of sentences, what concerns its tokens a list of (n, E) arrays, one a sentence:
no packing, no padding, no segments. Every step is a method of its own, which a mutant overrides.

What the page leaves open, and what is taken here:
    * N is the largest step count of the chains that are run, and eta moves N times;
    * RMS(X_s) and n of the relative radii count perturbed tokens only; a sentence without one has radius 0;
    * steps are multiples of epsilon for alpha and beta, of epsilon_token for gamma;
    * separate gradients: eta takes rho * g_pgd + (1 - rho) * g_fgsm, also after one chain has stopped.
"""

from dataclasses import dataclass
from typing import Optional, Union

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.sentences.ball import direction, norm_of, project
from tests.oracle.sentences.contrastive import contrastive_mean, contrastive_sum, gradient_of_sum


@dataclass(frozen=True)
class Options:
    """The named choices of METHODS.md; every field has the page's meaning."""

    method: str = "mixed"
    norm: str = "linf"
    num_pgd_steps: int = 3
    num_fgsm_steps: int = 3
    alpha: float = 0.04
    beta: float = 0.05
    gamma: float = 0.06
    rho: float = 0.3
    epsilon: Optional[float] = 0.1
    epsilon_token: Union[float, None, str] = "equal"
    epsilon_relative: Optional[float] = None
    step_relative: Optional[bool] = None
    sigma: float = 0.1
    use_eta: bool = True
    eta_scaling: str = "after"
    gradient: str = "shared"
    inner_dropout: str = "off"
    perturb_special_tokens: bool = True
    temperature: float = 0.05
    multi_positive: str = "sum"
    mask_duplicates: bool = True
    weight_adversarial: float = 1 / 128
    """lambda_1, or USCAL's alpha"""
    weight_rtd: float = 0.005
    """lambda_2"""
    rtd_reduction: str = "mean"
    rtd_input: str = "h"


@dataclass(frozen=True)
class Sizes:
    """Radii (None: no ball) and steps of one sentence."""

    epsilon: Optional[float]
    epsilon_token: Optional[float]
    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True)
class Found:
    """What the inner loop leaves, lists of (n, E) arrays; a chain that is not run stays at its start."""

    delta_pgd: list
    delta_fgsm: list
    delta: list
    eta: list
    inner_loss: Optional[float]
    """at the first gradient, summed over rows; both chains stand at one point there. None without a step"""


@dataclass(frozen=True)
class Views:
    """Masks of the passes with dropout on, None is no dropout; and what RTD's generator did (`rtd.Corruption`)."""

    clean: Optional[toy_encoder.Masks] = None
    positive: Optional[toy_encoder.Masks] = None
    adversarial: Optional[toy_encoder.Masks] = None
    corruption: Optional[object] = None


@dataclass(frozen=True)
class StepResult:
    found: Optional[Found]
    table: np.ndarray
    loss: float


def added(*terms):
    """Sums of lists, sentence by sentence."""
    return [sum(parts) for parts in zip(*terms, strict=True)]


def weighed(weight, items):
    return [weight * item for item in items]


class RobustSentEmbed:
    """The method with its state: the toy encoder's parameters, which may change between steps, and V."""

    def __init__(self, options, parameters, table):
        self.options = options
        self.parameters = parameters
        self.table = table.copy()

    def perturbed(self, sentence):
        """(n,) bool: the tokens that may move."""
        special = np.array(sentence.special)
        return np.ones_like(special) if self.options.perturb_special_tokens else ~special

    def keep_perturbed(self, sentence, values):
        return np.where(self.perturbed(sentence)[:, None], values, 0.0)

    # Sizes

    def token_rows_of_sizes(self, sentence, x):
        """The rows of X_s that RMS(X_s) and n are taken over."""
        return x[self.perturbed(sentence)]

    def relative_radius(self, rows, num_entries):
        if rows.size == 0:
            return 0.0
        exponent = {"linf": 0.0, "l2": 0.5, "l1": 1.0}[self.options.norm]
        return self.options.epsilon_relative * np.sqrt((rows * rows).mean()) * num_entries**exponent

    def radii(self, sentence, x):
        """(epsilon, epsilon_token) of a sentence."""
        options = self.options
        if options.epsilon_relative is not None:
            rows = self.token_rows_of_sizes(sentence, x)
            return self.relative_radius(rows, rows.size), self.relative_radius(rows, x.shape[1])
        equal = options.epsilon_token == "equal"
        return options.epsilon, options.epsilon if equal else options.epsilon_token

    def sizes(self, sentence, x):
        options = self.options
        epsilon, epsilon_token = self.radii(sentence, x)
        relative = options.step_relative
        if relative is None:
            relative = options.epsilon_relative is not None
        alpha, beta, gamma = options.alpha, options.beta, options.gamma
        if relative:
            alpha, beta = alpha * epsilon, beta * epsilon
            if options.use_eta:
                gamma = gamma * epsilon_token
        return Sizes(epsilon, epsilon_token, alpha, beta, gamma)

    # The inner loop

    def chain_weights(self):
        """Weights of (delta_pgd, delta_fgsm) in the mix."""
        return self.options.rho, 1 - self.options.rho

    def num_steps(self):
        weights = self.chain_weights()
        counts = (self.options.num_pgd_steps, self.options.num_fgsm_steps)
        return max(count for count, weight in zip(counts, weights, strict=True) if weight != 0)

    def start_delta(self, batch, uniform):
        """Delta before its projection, from ``uniform``: one (n, E) array of U(-1, 1) a sentence."""
        scale = self.options.sigma / np.sqrt(toy_encoder.EMBEDDING_SIZE)
        return [self.keep_perturbed(sentence, scale * u) for sentence, u in zip(batch, uniform, strict=True)]

    def start_eta(self, batch):
        if not self.options.use_eta:
            return [np.zeros((s.length, toy_encoder.EMBEDDING_SIZE)) for s in batch]
        return [self.keep_perturbed(sentence, self.table[list(sentence.tokens)]) for sentence in batch]

    def project_delta(self, delta, size):
        return project(delta, size.epsilon, self.options.norm)

    def project_token(self, eta_row, size):
        return project(eta_row, size.epsilon_token, self.options.norm)

    def mix(self, delta_pgd, delta_fgsm):
        pgd_weight, fgsm_weight = self.chain_weights()
        return added(weighed(pgd_weight, delta_pgd), weighed(fgsm_weight, delta_fgsm))

    def vectors(self, xs, masks=None, parameters=None):
        """z of every sentence."""
        inner = [None] * len(xs) if masks is None else masks.inner
        parameters = self.parameters if parameters is None else parameters
        return [toy_encoder.forward(parameters, x, mask)[0] for x, mask in zip(xs, inner, strict=True)]

    def inner_gradient(self, points, batch, keys, masks):
        """Gradients of the summed inner loss by the points, one (n, E) array a sentence."""
        inner = [None] * len(points) if masks is None else masks.inner
        pairs = zip(points, inner, strict=True)
        passes = [toy_encoder.forward(self.parameters, x, mask) for x, mask in pairs]
        queries = [z for z, _ in passes]
        ids = [sentence.identity for sentence in batch]
        grads = gradient_of_sum(queries, keys, ids, self.options.temperature, self.options.mask_duplicates)
        return [
            self.keep_perturbed(sentence, toy_encoder.backward(self.parameters, saved, grad, mask))
            for sentence, (_, saved), grad, mask in zip(batch, passes, grads, inner, strict=True)
        ]

    def gradients(self, x, delta_pgd, delta_fgsm, eta, batch, keys, masks):
        """(for the PGD chain, for the FGSM chain, for eta) of one inner step."""
        if self.options.gradient == "shared":
            shared = self.inner_gradient(added(x, self.mix(delta_pgd, delta_fgsm), eta), batch, keys, masks)
            return shared, shared, shared
        zeros = [np.zeros_like(x_s) for x_s in x]
        pgd_weight, fgsm_weight = self.chain_weights()
        pgd = self.inner_gradient(added(x, delta_pgd, eta), batch, keys, masks) if pgd_weight else zeros
        fgsm = self.inner_gradient(added(x, delta_fgsm, eta), batch, keys, masks) if fgsm_weight else zeros
        return pgd, fgsm, self.mix(pgd, fgsm)

    def directions(self, gradients):
        return [direction(g, self.options.norm) for g in gradients]

    def pgd_step(self, delta, gradients, sizes):
        """Eq. 5."""
        steps = zip(delta, self.directions(gradients), sizes, strict=True)
        return [self.project_delta(d + size.alpha * step, size) for d, step, size in steps]

    def fgsm_step(self, delta, gradients, sizes):
        """Eq. 6."""
        return [
            self.project_delta(d + size.beta * np.sign(g), size)
            for d, g, size in zip(delta, gradients, sizes, strict=True)
        ]

    def token_step(self, sentence, eta, gradient, size):
        """Eq. 2-4 for one sentence."""
        norm = self.options.norm
        perturbed = np.flatnonzero(self.perturbed(sentence))
        moved = {i: eta[i] + size.gamma * direction(gradient[i], norm) for i in perturbed}
        measured = {"after": moved, "before": eta, "none": None}[self.options.eta_scaling]
        largest = 0.0
        if measured is not None:
            largest = max((norm_of(measured[j], norm) for j in perturbed), default=0.0)
        result = np.zeros_like(eta)
        for i in perturbed:
            share = norm_of(measured[i], norm) / largest if largest > 0 else 1.0
            result[i] = self.project_token(share * moved[i], size)
        return result

    def search(self, x, batch, keys, uniform, masks=None):
        """Algorithm 1's loop over t; x and keys are constants in it."""
        options = self.options
        sizes = [self.sizes(sentence, x_s) for sentence, x_s in zip(batch, x, strict=True)]
        start = self.start_delta(batch, uniform)
        start = [self.project_delta(d, size) for d, size in zip(start, sizes, strict=True)]
        delta_pgd, delta_fgsm = list(start), list(start)
        eta = self.start_eta(batch)
        if options.use_eta:
            pairs = zip(eta, sizes, strict=True)
            eta = [np.array([self.project_token(row, size) for row in rows]) for rows, size in pairs]
        inner_loss = None
        if self.num_steps() > 0:
            inner_loss = self.inner_loss(self.vectors(added(x, start, eta), masks), keys, batch)
        for t in range(1, self.num_steps() + 1):
            for_pgd, for_fgsm, for_eta = self.gradients(x, delta_pgd, delta_fgsm, eta, batch, keys, masks)
            if t <= options.num_pgd_steps and self.chain_weights()[0]:
                delta_pgd = self.pgd_step(delta_pgd, for_pgd, sizes)
            if t <= options.num_fgsm_steps and self.chain_weights()[1]:
                delta_fgsm = self.fgsm_step(delta_fgsm, for_fgsm, sizes)
            if options.use_eta:
                eta = [self.token_step(*args) for args in zip(batch, eta, for_eta, sizes, strict=True)]
        return Found(delta_pgd, delta_fgsm, self.final_delta(delta_pgd, delta_fgsm, eta), eta, inner_loss)

    def final_delta(self, delta_pgd, delta_fgsm, eta):
        """Eq. 7; eta has no part in it."""
        return self.mix(delta_pgd, delta_fgsm)

    def write_table(self, batch, eta):
        """V[w] <- mean of the final eta over all perturbed positions of w; other rows stay."""
        positions = {}
        for sentence, eta_s in zip(batch, eta, strict=True):
            for i in np.flatnonzero(self.perturbed(sentence)):
                positions.setdefault(sentence.tokens[i], []).append(eta_s[i])
        for word, rows in positions.items():
            self.table[word] = self.table_row(word, rows)

    def table_row(self, word, rows):
        return sum(rows) / len(rows)

    # The outer loss

    def outer_loss(self, z, z_positive, z_adversarial, ids):
        """L_con(z, {z+, z_adv}) + lambda_1 L_con(z_adv, {z+}), eq. 10 without RTD."""
        o = self.options
        both = contrastive_mean(z, [z_positive, z_adversarial], ids, o.temperature, o.multi_positive, o.mask_duplicates)
        pull = contrastive_mean(z_adversarial, [z_positive], ids, o.temperature, "sum", o.mask_duplicates)
        return both + o.weight_adversarial * pull

    def embedded(self, batch, masks, parameters=None):
        parameters = self.parameters if parameters is None else parameters
        inner = [None] * len(batch) if masks is None else masks.embedding
        pairs = zip(batch, inner, strict=True)
        return [toy_encoder.embed(parameters, sentence, mask) for sentence, mask in pairs]

    def loss(self, batch, delta, views=Views(), parameters=None):
        """The total loss as a function of the parameters, ``delta`` held constant."""
        x = self.embedded(batch, views.clean, parameters)
        x_positive = self.embedded(batch, views.positive, parameters)
        z = self.vectors(x, views.clean, parameters)
        z_positive = self.vectors(x_positive, views.positive, parameters)
        z_adversarial = self.vectors(added(x, delta), views.adversarial, parameters)
        return self.outer_loss(z, z_positive, z_adversarial, [sentence.identity for sentence in batch])

    def step(self, batch, uniform, views=Views()):
        """One training step up to the loss, the table written."""
        x = self.embedded(batch, views.clean)
        keys = self.vectors(self.embedded(batch, views.positive), views.positive)
        frozen = views.clean if self.options.inner_dropout == "frozen" else None
        found = self.search(x, batch, keys, uniform, frozen)
        if self.options.use_eta:
            self.write_table(batch, found.eta)
        return StepResult(found, self.table.copy(), self.loss(batch, found.delta, views))

    def inner_loss(self, queries, keys, batch):
        ids = [sentence.identity for sentence in batch]
        return contrastive_sum(queries, [keys], ids, self.options.temperature, "sum", self.options.mask_duplicates)


class SimCSE(RobustSentEmbed):
    """L_con(z, {z+}); nothing is searched and no table written."""

    def step(self, batch, uniform, views=Views()):
        return StepResult(None, self.table.copy(), self.loss(batch, self.still(batch), views))

    @staticmethod
    def still(batch):
        """A delta of zeros."""
        return [np.zeros((sentence.length, toy_encoder.EMBEDDING_SIZE)) for sentence in batch]

    def outer_loss(self, z, z_positive, z_adversarial, ids):
        o = self.options
        return contrastive_mean(z, [z_positive], ids, o.temperature, "sum", o.mask_duplicates)


def parameter_slope(loss_of, parameters, direction_of_move):
    """The derivative of the loss along a direction of all parameters, by a complex step."""
    moved = {name: values + 1e-30j * direction_of_move[name] for name, values in parameters.items()}
    return complex(loss_of(moved)).imag / 1e-30


def parameter_gradient(loss_of, parameters):
    """d loss / d parameters, by a complex step in each entry."""
    gradients = {}
    for name, values in parameters.items():
        gradients[name] = np.zeros_like(values)
        for index in np.ndindex(values.shape):
            moved = {**parameters, name: values.astype(complex)}
            moved[name][index] += 1e-30j
            gradients[name][index] = complex(loss_of(moved)).imag / 1e-30
    return gradients

"""Runs one case on both sides and says where they differ."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tests.oracle import transcription
from tests.oracle.sentences.rtd import RobustSentEmbedWithRTD, make_discriminator_parameters
from tests.oracle.sentences.torch_run import TorchRun
from tests.oracle.sentences.uscal import USCAL
from tests.oracle.toy_encoder import EMBEDDING_SIZE, VOCAB_SIZE, make_parameters

# Both sides do the same few hundred float64 operations in another order: 1e-13 of the largest entry; a cosine
# over temperature 0.05 enlarges that to some 1e-12.
RELATIVE_TOLERANCE = 1e-10
ABSOLUTE_FLOOR = 1e-14
FAR_ABOVE_ROUNDING = 1e6 * RELATIVE_TOLERANCE
"""What a planted mistake must exceed: a comparison that sees one only where rounding was amplified does not see it."""

TRANSCRIBED = {
    "simcse": transcription.SimCSE,
    "robustsentembed": transcription.RobustSentEmbed,
    "robustsentembed-rtd": RobustSentEmbedWithRTD,
    "uscal": USCAL,
}


def parameters_of(case):
    """The parameters both sides start with."""
    parameters = make_parameters(head=case.head)
    return {**parameters, **make_discriminator_parameters()} if case.objective.endswith("-rtd") else parameters


@dataclass(frozen=True)
class Difference:
    step: int
    what: str
    size: float
    """the largest gap over the largest entry; infinite where there are no two numbers to compare"""


def run_torch(case, seed=0):
    """The table before the first step, and the steps of the torch side."""
    run = TorchRun(case.options, parameters_of(case), case.reuse, case.has_dropout, case.objective, seed)
    table = run.table
    steps = []
    for batch in case.batches:
        steps.append(run.step(batch))
        if case.learning_rate:
            run.descend(case.learning_rate)
    return table, steps


torch_steps = lru_cache(maxsize=None)(run_torch)


def differences(case, transcribed=None, seed=0):
    """A list of `Difference`; empty where both sides agree.

    Args:
        transcribed: the class on the numpy side; by default the transcription of the case's objective.
        seed: of everything the torch side draws.
    """
    table, steps = torch_steps(case, seed)
    return compared(case, table, steps, transcribed)


def compared(case, table, steps, transcribed=None):
    """As `differences`, for steps of the torch side that were taken elsewhere."""
    is_simcse = case.objective == "simcse"
    transcribed = TRANSCRIBED[case.objective] if transcribed is None else transcribed
    numpy_side = transcribed(case.options, parameters_of(case), table)
    found = []
    for number, (batch, torch_step) in enumerate(zip(case.batches, steps, strict=True), start=1):
        found += [Difference(number, f"masks: {fault}", np.inf) for fault in torch_step.mask_faults]
        expected = numpy_side.step(batch, torch_step.uniform, torch_step.views)
        pairs = {"loss": (expected.loss, torch_step.result.loss)}
        if not is_simcse:
            pairs.update(_perturbations(case.options, expected, torch_step.result))
        sizes = {name: difference(*pair) for name, pair in pairs.items()}

        def loss_of(parameters, batch=batch, step=torch_step, expected=expected):
            delta = transcription.SimCSE.still(batch) if is_simcse else expected.found.delta
            return numpy_side.loss(batch, delta, step.views, parameters)

        gradients = torch_step.parameter_grads
        sizes.update(gradient_sizes(loss_of, numpy_side.parameters, gradients, bool(case.learning_rate)))
        if case.learning_rate:
            numpy_side.parameters = descended(loss_of, numpy_side.parameters, case.learning_rate)
        found += [Difference(number, name, float(size)) for name, size in sizes.items() if size]
    return found


def gradient_sizes(loss_of, parameters, theirs, has_every_gradient):
    """Sizes of differences of the gradients along one direction of all parameters, or by each of them too, by name."""
    moves = random_moves(parameters)
    slope = transcription.parameter_slope(loss_of, parameters, moves)
    parts = np.concatenate([(grad * moves[name]).ravel() for name, grad in theirs.items()])
    # Parts of both signs: the sum's rounding goes with their magnitudes, whatever is left of them.
    sizes = {"parameter slope": difference(slope, parts.sum(), scale=np.abs(parts).sum())}
    if has_every_gradient:
        for name, gradient in transcription.parameter_gradient(loss_of, parameters).items():
            sizes[f"gradient of {name}"] = difference(gradient, theirs[name])
    return sizes


def descended(loss_of, parameters, learning_rate):
    """The parameters after a step along the transcription's own gradients."""
    gradients = transcription.parameter_gradient(loss_of, parameters)
    return {name: values - learning_rate * gradients[name] for name, values in parameters.items()}


def slope_by_differences(loss_of, parameters, moves, step=1e-6):
    """The derivative along ``moves`` by a central difference, whose error is rounding over step: 1e-9 of the loss."""
    up, down = (
        loss_of({name: values + size * moves[name] for name, values in parameters.items()}) for size in (step, -step)
    )
    return (up - down) / (2 * step)


def _perturbations(options, expected, actual):
    """Pairs by name; the end of a chain that is not run is nobody's business."""
    if options.method != "mixed":
        names = ["delta"]
    else:
        names = ["delta", "eta"] + ["delta_pgd"] * (options.rho != 0) + ["delta_fgsm"] * (options.rho != 1)
    pairs = {
        name: (np.concatenate(getattr(expected.found, name)), np.concatenate(getattr(actual.found, name)))
        for name in names
    }
    pairs["inner loss"] = (expected.found.inner_loss, actual.found.inner_loss)
    if options.use_eta:
        pairs["table"] = (expected.table, actual.table)
    return pairs


def difference(ours, theirs, scale=None):
    """The size of a `Difference`, 0 within the tolerance; of ``scale``, by default the largest entry of ``ours``."""
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else np.inf
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    if scale is None:
        scale = np.abs(ours).max(initial=0.0)
    gap = np.abs(ours - theirs).max(initial=0.0)
    if gap <= RELATIVE_TOLERANCE * scale + ABSOLUTE_FLOOR:
        return 0.0
    return gap / scale if scale > 0 else np.inf


def largest(found):
    """The size of the largest `Difference`."""
    return max((difference.size for difference in found), default=0.0)


def random_moves(parameters, seed=0):
    """A direction of all parameters, along which the gradient is compared."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=values.shape) for name, values in parameters.items()}


def random_uniform(batch, seed=0):
    """A start for the transcription alone."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, size=(sentence.length, EMBEDDING_SIZE)) for sentence in batch]


def random_table(sigma, seed=0):
    uniform = np.random.default_rng(seed).uniform(-1, 1, size=(VOCAB_SIZE, EMBEDDING_SIZE))
    return sigma * uniform / EMBEDDING_SIZE**0.5

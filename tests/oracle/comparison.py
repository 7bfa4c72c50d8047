"""Runs one case on both sides and says where they differ."""

from functools import lru_cache

import numpy as np

from . import transcription
from .rtd import RobustSentEmbedWithRTD, make_discriminator_parameters
from .torch_run import TorchRun
from .toy_encoder import EMBEDDING_SIZE, VOCAB_SIZE, make_parameters
from .uscal import USCAL

# Both sides do the same few hundred float64 operations in another order: 1e-13 of the largest entry; a cosine
# over temperature 0.05 enlarges that to some 1e-12.
RELATIVE_TOLERANCE = 1e-10
ABSOLUTE_FLOOR = 1e-14

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


def run_torch(case):
    """The table before the first step, and the steps of the torch side."""
    run = TorchRun(case.options, parameters_of(case), case.reuse, case.has_dropout, case.objective)
    table = run.table
    steps = []
    for batch in case.batches:
        steps.append(run.step(batch))
        if case.learning_rate:
            run.descend(case.learning_rate)
    return table, steps


torch_steps = lru_cache(maxsize=None)(run_torch)


def differences(case, transcribed=None):
    """Lines like ``step 2: eta differs by 1e-3 of its largest entry``; empty where both sides agree.

    Args:
        transcribed: the class on the numpy side; by default the transcription of the case's objective.
    """
    table, steps = torch_steps(case)
    return compared(case, table, steps, transcribed)


def compared(case, table, steps, transcribed=None):
    """As `differences`, for steps of the torch side that were taken elsewhere."""
    is_simcse = case.objective == "simcse"
    transcribed = TRANSCRIBED[case.objective] if transcribed is None else transcribed
    numpy_side = transcribed(case.options, parameters_of(case), table)
    found = []
    for number, (batch, torch_step) in enumerate(zip(case.batches, steps, strict=True), start=1):
        expected = numpy_side.step(batch, torch_step.uniform, torch_step.views)
        pairs = {"loss": (expected.loss, torch_step.result.loss)}
        if not is_simcse:
            pairs.update(_perturbations(case.options, expected, torch_step.result))

        def loss_of(parameters, batch=batch, step=torch_step, expected=expected):
            delta = transcription.SimCSE.still(batch) if is_simcse else expected.found.delta
            return numpy_side.loss(batch, delta, step.views, parameters)

        grads = torch_step.parameter_grads
        moves = random_moves(numpy_side.parameters)
        slope = transcription.parameter_slope(loss_of, numpy_side.parameters, moves)
        pairs["parameter slope"] = (slope, sum((grads[name] * moves[name]).sum() for name in grads))
        if case.learning_rate:
            grads = transcription.parameter_gradient(loss_of, numpy_side.parameters)
            pairs.update({f"gradient of {name}": (grads[name], torch_step.parameter_grads[name]) for name in grads})
            numpy_side.parameters = {
                name: values - case.learning_rate * grads[name] for name, values in numpy_side.parameters.items()
            }
        for name, (ours, theirs) in pairs.items():
            line = _difference(ours, theirs)
            if line:
                found.append(f"step {number}: {name} {line}")
    return found


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


def _difference(ours, theirs):
    if ours is None or theirs is None:
        return "" if ours is theirs else f"is {ours} in numpy and {theirs} in torch"
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return f"has shape {ours.shape} in numpy and {theirs.shape} in torch"
    largest = np.abs(ours).max(initial=0.0)
    gap = np.abs(ours - theirs).max(initial=0.0)
    if gap <= RELATIVE_TOLERANCE * largest + ABSOLUTE_FLOOR:
        return ""
    return f"differs by {gap:.3g}, its largest entry being {largest:.3g}"


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

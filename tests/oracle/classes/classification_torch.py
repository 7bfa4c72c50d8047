"""Drives the real `Step` of a supervised system on the toy encoder, and compares it with the transcription.

Random numbers are torch's own: delta's start is recorded where it is drawn, dropout masks where the toy encoder draws
them, and the transcription takes both as given.
"""

from dataclasses import dataclass
from functools import lru_cache
from unittest.mock import patch

import numpy as np
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts
from tests.oracle.classes.classification import NUM_CLASSES, make_classifier_parameters
from tests.oracle.classes.classification_cases import TRANSCRIBED
from tests.oracle.comparison import Difference, descended, difference, gradient_sizes
from tests.oracle.toy_encoder import EMBEDDING_SIZE, HIDDEN_SIZE, Masks, make_parameters
from tests.oracle.toy_encoder_torch import OF_CLASSIFIER, ToyEncoder, by_sentence, gradients_of, make_head, pack
from tests.oracle.transcription import Views


def parameters_of(case):
    """The parameters both sides start with."""
    return {**make_parameters(head=case.head), **make_classifier_parameters()}


def objective_options(case):
    """The shipped objective's name, and its options."""
    o, system = case.options, case.system
    if system == "adversarial_training":
        return system, {"weight_clean": o.weight_clean}
    if system == "freelb":
        return "adversarial_training", {"weight_clean": 0.0}
    if system == "smart":
        return system, {"weight_smoothness": o.weight_smoothness, "weight_momentum": o.weight_momentum}
    if system.startswith("scal"):
        weight = 0.0 if system == "scal+at" else o.weight_contrastive
        named = {"head": case.head, "temperature": o.temperature, "mask_duplicates": o.mask_duplicates}
        return "scal", {"weight_contrastive": weight, "attack": system != "scal+cl", **named}
    return system, {}


@dataclass(frozen=True)
class TorchStep:
    """What one step found, and the random numbers it used."""

    loss: float
    delta: list
    """(n, E) a sentence; None without a search"""
    inner_loss: float
    start: list
    views: Views
    gradients: dict
    average: dict
    """after the step, by the transcription's names; empty without an average"""
    num_masks: int


class TorchRun:
    """A `Step` with its state over several batches."""

    def __init__(self, case, seed=0):
        torch.manual_seed(seed)
        parameters, o = parameters_of(case), case.options
        name, options = objective_options(case)
        classifier = make_head(parameters, NUM_CLASSES)
        self.objective = resolve_objective(name)(HIDDEN_SIZE, classifier, **options).double()
        self.objective.begin(RunFacts(num_rows=12, batches_per_epoch=3, total_steps=o.total_steps))
        if case.head == "mlp":
            names = {"weight": "head_weight", "bias": "head_bias"}
            self.objective.head[0].load_state_dict({key: torch.tensor(parameters[n]) for key, n in names.items()})
        names = [n for n in vars(o) if n in PerturbationConfig.__dataclass_fields__]
        self.encoder = ToyEncoder(parameters, case.has_dropout)
        settings = {n: getattr(o, n) for n in names}
        self.module = Step(self.encoder, self.objective, PerturbationConfig(**settings)).train()
        self.case, self.found = case, []
        if self.module.search is not None:
            record = self.module.search.record
            self.module.search.record = lambda found, batch: self.found.append(found) or record(found, batch)

    def named_parameters(self):
        """The module's parameters under the transcription's names."""
        head = dict(self.objective.classifier.named_parameters())
        named = {**dict(self.encoder.named_parameters()), **{n: head[theirs] for n, theirs in OF_CLASSIFIER.items()}}
        if self.case.head == "mlp":
            named.update({f"head_{n}": p for n, p in self.objective.head[0].named_parameters()})
        return named

    def average(self):
        if self.module.average is None:
            return {}
        state = self.module.average.state_dict()
        names = {n: f"encoder.{n}" for n, _ in self.encoder.named_parameters()}
        names.update({n: f"head.{theirs}" for n, theirs in OF_CLASSIFIER.items()})
        return {n: state[f"average_model.{theirs}"].numpy().copy() for n, theirs in names.items()}

    def step(self, sentences):
        batch = pack(sentences, labels=[s.label for s in sentences])
        found, draws = self.found, []
        found.clear()

        def recorded_uniform(tensor, *args):
            draws.append(uniform(tensor, *args).clone())
            return tensor.copy_(draws[-1])

        def recorded_normal(tensor, mean, std):
            draws.append(normal(tensor, 0, 1).clone())
            return tensor.copy_(draws[-1] * std + mean)

        uniform, normal = torch.Tensor.uniform_, torch.Tensor.normal_
        self.encoder.drawn.clear()
        self.module.zero_grad()
        with (
            patch.object(torch.Tensor, "uniform_", recorded_uniform),
            patch.object(torch.Tensor, "normal_", recorded_normal),
        ):
            loss = self.module(batch)
        loss.backward()
        parameters = self.named_parameters()
        gradients = gradients_of(parameters)
        if self.case.learning_rate:
            with torch.no_grad():
                for parameter in parameters.values():
                    parameter -= self.case.learning_rate * (0 if parameter.grad is None else parameter.grad)
        self.module.commit()

        def split(packed):
            return by_sentence(packed, batch)

        (draw,) = draws or [torch.zeros(batch.num_tokens, EMBEDDING_SIZE)]
        return TorchStep(
            loss=float(loss.detach()),
            delta=split(found[0].delta) if found else None,
            inner_loss=float(found[0].trace.losses[0]) if found else None,
            start=split(draw),
            views=self._views(split),
            gradients=gradients,
            average=self.average(),
            num_masks=len(self.encoder.drawn),
        )

    def _views(self, split):
        """By the order in which the step draws masks: of z, of z+, of inner steps, of z_adv."""
        if not self.case.has_dropout:
            return Views()
        drawn = list(map(split, self.encoder.drawn))
        if not self.objective.needs.clean:
            return Views(clean=Masks(drawn[0], None), adversarial=Masks(None, drawn[1]))
        clean = Masks(drawn[0], drawn[1])
        if self.objective.needs.positive:
            return Views(clean=clean, positive=Masks(drawn[2], drawn[3]))
        is_attacked = self.objective.needs.adversarial is not None
        return Views(clean=clean, adversarial=Masks(None, drawn[-1]) if is_attacked else None)


def run_torch(case, seed=0):
    run = TorchRun(case, seed)
    return [run.step(batch) for batch in case.batches]


torch_steps = lru_cache(maxsize=None)(run_torch)


def differences(case, transcribed=None, seed=0, has_every_gradient=False):
    """A list of `Difference`; empty where both sides agree.

    Args:
        has_every_gradient: compare that by each parameter, and not along one direction of all; always so where
            parameters move.
    """
    return compared(case, torch_steps(case, seed), transcribed, has_every_gradient)


def compared(case, steps, transcribed=None, has_every_gradient=False):
    """As `differences`, for steps of the torch side that were taken elsewhere."""
    kind = TRANSCRIBED[case.system] if transcribed is None else transcribed
    numpy_side = kind(case.options, parameters_of(case), np.zeros((1, EMBEDDING_SIZE)))
    found = []
    for number, (batch, theirs) in enumerate(zip(case.batches, steps, strict=True), start=1):
        ours = numpy_side.step(batch, theirs.start, theirs.views)
        pairs, delta = {"loss": (ours.loss, theirs.loss)}, None
        if ours.found is not None:
            delta = getattr(ours.found, "passes", None) or ours.found.delta
            if theirs.delta is None:
                return [Difference(number, "delta", np.inf)]
            pairs["delta"] = np.concatenate(ours.found.delta), np.concatenate(theirs.delta)
            pairs["inner loss"] = ours.found.inner_loss, theirs.inner_loss

        def loss_of(parameters, batch=batch, delta=delta, views=theirs.views):
            return numpy_side.loss(batch, delta, views, parameters)

        sizes = {name: difference(*pair) for name, pair in pairs.items()}
        is_every = has_every_gradient or bool(case.learning_rate)
        sizes.update(gradient_sizes(loss_of, numpy_side.parameters, theirs.gradients, is_every))
        if case.learning_rate:
            numpy_side.parameters = descended(loss_of, numpy_side.parameters, case.learning_rate)
        if hasattr(numpy_side, "commit"):
            numpy_side.commit()
            kept = {f"average of {name}": (numpy_side.average[name], theirs.average[name]) for name in theirs.average}
            sizes.update({name: difference(*pair) for name, pair in kept.items()})
        found += [Difference(number, name, float(size)) for name, size in sizes.items() if size]
    return found

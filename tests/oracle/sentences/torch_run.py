"""Drives the real `Step` on the toy encoder and hands back what it found, in the transcription's terms.

Random numbers are torch's own: the uniform start of delta is recorded where it is drawn, dropout masks where
the toy encoder draws them, and the transcription takes both as given.
"""

from dataclasses import dataclass, replace
from typing import Optional
from unittest.mock import patch

import numpy as np
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.sentences.rtd import ReplacedTokenDetection
from tests.oracle.sentences.masks import Drawn
from tests.oracle.sentences.toy_discriminator_torch import RecordedFills, ToyDiscriminator
from tests.oracle.toy_encoder import Masks
from tests.oracle.toy_encoder_torch import ToyEncoder, by_sentence, pack
from tests.oracle.transcription import Found, StepResult, Views

OBJECTIVE_OPTIONS = ("temperature", "multi_positive", "mask_duplicates")


@dataclass(frozen=True)
class TorchStep:
    """One step of the torch side, with the random numbers it used and its parameters' gradients."""

    result: StepResult
    uniform: list
    views: Views
    parameter_grads: dict
    drawn: Optional[Drawn]
    """None without dropout"""
    mask_faults: list


def load_linear(linear, parameters, name):
    linear.load_state_dict({kind: torch.tensor(parameters[f"{name}_{kind}"]) for kind in ("weight", "bias")})


class TorchRun:
    """A `Step` with its state over several batches."""

    def __init__(self, options, parameters, reuse="exact", has_dropout=True, objective="robustsentembed", seed=0):
        torch.manual_seed(seed)
        chosen = {name: getattr(options, name) for name in OBJECTIVE_OPTIONS}
        has_detection = objective == "robustsentembed-rtd"
        if objective != "simcse":
            chosen["weight_adversarial"] = options.weight_adversarial
        if has_detection:
            names = ("weight_rtd", "rtd_reduction", "rtd_input")
            chosen.update({name: getattr(options, name) for name in names}, rtd_generator="unigram")
        head = "mlp" if "head_weight" in parameters else "none"
        hidden_size = ToyEncoder.hidden_size
        self.objective = resolve_objective(objective.removesuffix("-rtd"))(hidden_size, head=head, **chosen).double()
        if head == "mlp":
            load_linear(self.objective.head[0], parameters, "head")
        names = [name for name in vars(options) if name in PerturbationConfig.__dataclass_fields__]
        config = PerturbationConfig(reuse=reuse, **{name: getattr(options, name) for name in names})
        self.encoder = ToyEncoder(parameters, has_dropout)
        self.fills, detection = RecordedFills(), None
        if has_detection:
            detection = ReplacedTokenDetection(self.objective.needs.detection, self.fills, ToyDiscriminator(parameters))
            load_linear(detection.head.double(), parameters, "d_head")
        self.module = Step(self.encoder, self.objective, config, detection).train()
        self.found, self.num_inner_passes = [], 0
        if self.module.search is not None:
            self._watch(self.module.search.adversary)

    def _watch(self, adversary):
        """Keeps what the search finds, and counts its passes: a gradient from the clean pass's own graph is none."""
        search = adversary.search

        def watched_search(x, batch, loss, *rest):
            def counted(points):
                self.num_inner_passes += 1
                return loss(points)

            self.found.append(search(x, batch, counted, *rest))
            return self.found[-1]

        adversary.search = watched_search

    @property
    def table(self):
        if self.module.eta_table is None:
            return np.zeros((ToyEncoder.vocab_size, ToyEncoder.embedding_size))
        return self.module.eta_table.table.numpy().copy()

    def named_parameters(self):
        """The module's parameters under the transcription's names."""
        named = dict(self.encoder.named_parameters())
        head = dict(self.objective.head.named_parameters())
        if head:
            named.update(head_weight=head["0.weight"], head_bias=head["0.bias"])
        if self.module.detection is not None:
            discriminator = dict(self.module.detection.discriminator.named_parameters())
            named["d_mapping"] = discriminator.pop("embeddings_project.weight")
            named.update({f"d_{name}": parameter for name, parameter in discriminator.items()})
            head = self.module.detection.head
            named.update(d_head_weight=head.weight, d_head_bias=head.bias)
        return named

    def descend(self, learning_rate):
        with torch.no_grad():
            for parameter in self.named_parameters().values():
                parameter -= learning_rate * parameter.grad

    def step(self, sentences, is_committed=True):
        """Forward, backward and, where ``is_committed``, table write on a batch; parameters stay."""
        batch, draws = pack(sentences), []
        self.found.clear()
        self.num_inner_passes = 0

        def recorded_uniform(tensor, *args, **kwargs):
            drawn = uniform(tensor, *args, **kwargs)
            draws.append(drawn.clone())
            return drawn

        uniform = torch.Tensor.uniform_
        self.encoder.drawn.clear()
        self.module.zero_grad()
        with patch.object(torch.Tensor, "uniform_", recorded_uniform):
            loss = self.module(batch)
        loss.backward()
        if is_committed:
            self.module.commit()
        grads = {name: p.grad.numpy().copy() for name, p in self.named_parameters().items() if p.grad is not None}

        def split(packed):
            if packed is None:
                packed = torch.zeros(batch.num_tokens, ToyEncoder.embedding_size)
            return by_sentence(packed, batch)

        outcome = None
        if self.found:
            (perturbation,) = self.found
            parts = (perturbation.state.pgd, perturbation.state.fgsm, perturbation.delta, perturbation.eta)
            losses = perturbation.trace.losses
            outcome = Found(*map(split, parts), float(losses[0]) if losses else None)
        if not draws:
            draws.append(None)
        (draw,) = draws
        drawn, faults = None, []
        views = Views(corruption=None if self.module.detection is None else self.fills.corruption())
        if self.encoder.has_dropout:
            is_attacked = self.objective.needs.adversarial is not None
            drawn = Drawn.of_order(self.encoder.drawn, is_attacked)
            config = self.module.plan
            faults = drawn.faults(self.num_inner_passes, config.inner_dropout == "frozen", config.reuse == "none")
            views = replace(
                views,
                clean=Masks(split(drawn.clean_embedding), split(drawn.clean)),
                positive=Masks(split(drawn.positive_embedding), split(drawn.positive)),
                adversarial=Masks(None, split(drawn.adversarial)) if is_attacked else None,
            )
        result = StepResult(outcome, self.table, float(loss.detach()))
        return TorchStep(result, split(draw), views, grads, drawn, faults)

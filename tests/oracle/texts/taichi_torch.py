"""Drives the real `Step` of TaiChi on two toy encoders; the dropout masks it draws go to the transcription."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.encoder.classifier.classification_head import LinearHead
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from tests.oracle.classes.classification import NUM_CLASSES
from tests.oracle.texts.taichi import ADVERSARIAL, CLEAN, make_parameters
from tests.oracle.texts.taichi_cases import BATCHES
from tests.oracle.toy_encoder import HIDDEN_SIZE, Masks
from tests.oracle.toy_encoder_torch import ToyEncoder, by_sentence, gradients_of, pack

TEXTS = ("x", "x'")


def batch_of(rows):
    """As training data give it: where there is no attacked text, the text stands in its place."""
    attacked = pack([row.text if row.attacked is None else row.attacked for row in rows])
    is_present = torch.tensor([row.attacked is not None for row in rows])
    batch = pack([row.text for row in rows], labels=[row.label for row in rows])
    return replace(batch, variants={"adversarial": replace(attacked, is_present=is_present)})


@dataclass(frozen=True)
class TaiChiStep:
    """What one step found, and the masks it drew, by (network, text); None without dropout."""

    loss: float
    terms: dict
    gradients: dict
    """by the transcription's names; of a network that is not there, zeros"""
    masks: dict


class TaiChiRun:
    """A `Step` of TaiChi from the transcription's parameters."""

    def __init__(self, case, seed=0, micro_batch_size=None):
        torch.manual_seed(seed)
        self.parameters, options = make_parameters(), case.options
        kind = resolve_objective("taichi")
        chosen = {name: getattr(options, name) for name in ("ablation", "similarity", "temperature")}
        self.objective = kind(HIDDEN_SIZE, LinearHead(HIDDEN_SIZE, NUM_CLASSES), **chosen)
        # Without a clean network the only one is the adversarial one.
        first = ADVERSARIAL if options.ablation == "adversarial" else CLEAN
        self.networks = {first: (self._encoder(first, case.has_dropout), self.objective.classifier)}
        second = None
        if self.objective.needs.second_network:
            second = self._encoder(ADVERSARIAL, case.has_dropout)
            self.objective.second_classifier = LinearHead(HIDDEN_SIZE, NUM_CLASSES)
            self.networks[ADVERSARIAL] = second, self.objective.second_classifier
        self.objective.double()
        for network, (_, head) in self.networks.items():
            own = {name: torch.tensor(self.parameters[f"{network}.out_{name}"]) for name in ("weight", "bias")}
            head.out.load_state_dict(own)
        settings = {"second": second, "micro_batch_size": micro_batch_size}
        self.module = Step(self.networks[first][0], self.objective, PerturbationConfig(), **settings).train()

    def _encoder(self, network, has_dropout):
        start = f"{network}."
        own = {name.removeprefix(start): v for name, v in self.parameters.items() if name.startswith(start)}
        return ToyEncoder(own, has_dropout)

    def named_parameters(self):
        named = {}
        for network, (encoder, head) in self.networks.items():
            own = {**dict(encoder.named_parameters()), "out_weight": head.out.weight, "out_bias": head.out.bias}
            named.update({f"{network}.{name}": parameter for name, parameter in own.items()})
        return named

    def step(self, rows):
        batch = batch_of(rows)
        for encoder, _ in self.networks.values():
            encoder.drawn.clear()
        self.module.zero_grad()
        loss = self.module(batch)
        loss.backward()
        gradients = {name: np.zeros(values.shape) for name, values in self.parameters.items()}
        gradients.update(gradients_of(self.named_parameters()))
        self.module.commit()
        terms = {name: value.item() for name, value in self.module.metrics.items() if name.startswith("loss_")}
        return TaiChiStep(loss.item(), terms, gradients, self._masks(batch))

    def _masks(self, batch):
        """A network draws at x first, then at x': at the embeddings, then behind them."""
        masks = {}
        for network, (encoder, _) in self.networks.items():
            drawn = iter(encoder.drawn)
            for text, texts in zip(TEXTS, (batch, batch.variants["adversarial"]), strict=True):
                of_pass = [next(drawn, None), next(drawn, None)]
                masks[network, text] = Masks(*(None if one is None else by_sentence(one, texts) for one in of_pass))
            assert next(drawn, None) is None
        return masks


@lru_cache(maxsize=None)
def torch_steps(case, seed=0):
    """By the name of the batch."""
    run = TaiChiRun(case, seed)
    return {name: run.step(BATCHES[name]) for name in case.batches}

"""Drives the real `Step` of FreeLB, CARL or RAR on the toy encoder; its random numbers go to the transcription."""

from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from fastadv.config.schema import PerturbationConfig
from fastadv.engine.step.step import Step
from fastadv.objectives.base import RunFacts
from fastadv.objectives.classes.adversarial_training import AdversarialTraining
from fastadv.objectives.classes.carl import CARL
from fastadv.objectives.classes.memory_bank import MemoryBanks
from fastadv.objectives.classes.rar import RAR
from tests.oracle.classes.free_passes import Draws
from tests.oracle.classes.supervised_cases import (
    LABELS,
    NUM_CLASSES,
    NUM_FILLING,
    NUM_ROWS,
    Outcome,
    parameters_of,
)
from tests.oracle.comparison import random_moves
from tests.oracle.toy_encoder import EMBEDDING_SIZE, HIDDEN_SIZE, Masks
from tests.oracle.toy_encoder_torch import ToyEncoder, by_sentence, pack


class SupervisedRun:
    """A `Step` with its state over several batches."""

    def __init__(self, case, seed=0):
        torch.manual_seed(seed)
        self.case, parameters, options = case, parameters_of(case), case.options
        classifier = nn.Linear(HIDDEN_SIZE, NUM_CLASSES).double()
        self.objective = self._objective(classifier)
        self.encoder = ToyEncoder(parameters, case.has_dropout)
        self.objective.bind(self.encoder)
        # As many batches an epoch as fill the banks.
        facts = RunFacts(NUM_ROWS, NUM_FILLING, len(case.batches), seed, np.array(LABELS))
        self.objective.begin(facts)
        config = PerturbationConfig(
            method="freelb",
            num_steps=options.num_passes,
            alpha=options.alpha,
            sigma=options.sigma,
            epsilon=options.epsilon,
        )
        self.module = Step(self.encoder, self.objective, config).double().train()
        with torch.no_grad():
            for name, parameter in self.named_parameters().items():
                parameter.copy_(torch.tensor(parameters[name]))

    def _objective(self, classifier):
        options = self.case.options
        if self.case.kind == "carl":
            return CARL(
                HIDDEN_SIZE,
                classifier,
                estimator=options.estimator,
                temperature=options.temperature,
                num_negatives=options.num_negatives,
                momentum=options.momentum,
                normalize=options.normalize,
                negatives=self.case.negatives,
            )
        if self.case.kind == "rar":
            return RAR(HIDDEN_SIZE, classifier, weight_reconstruction=options.weight_reconstruction)
        return AdversarialTraining(HIDDEN_SIZE, classifier, weight_clean=0.0)

    def named_parameters(self):
        """The module's parameters under the transcription's names."""
        named = dict(self.encoder.named_parameters())
        named.update(class_weight=self.objective.classifier.weight, class_bias=self.objective.classifier.bias)
        if self.case.kind == "rar":
            built = self.objective.reconstructor
            named.update(r_weight=built.dense.weight, r_bias=built.dense.bias, r_word_bias=built.bias)
            named.update(r_norm_weight=built.norm.weight, r_norm_bias=built.norm.bias)
        return named

    def step(self, batch):
        """One training step on `Example`s: (its outcome, the draws it made)."""
        packed = pack_examples(batch)
        found, uniforms, drawn_negatives = [], [], []
        uniform, draw = torch.Tensor.uniform_, MemoryBanks.draw

        def recorded_uniform(tensor, *args, **kwargs):
            values = uniform(tensor, *args, **kwargs)
            uniforms.append(values.clone())
            return values

        def recorded_draw(*args):
            drawn_negatives.append(draw(*args))
            return drawn_negatives[-1]

        def recorded_encode(x, *args, **kwargs):
            found.append(x.detach().clone())
            return encode(x, *args, **kwargs)

        encode, embed, xs = self.encoder.encode_with_tokens, self.encoder.embed, []

        def recorded_embed(*args, **kwargs):
            xs.append(embed(*args, **kwargs))
            return xs[-1]

        self.encoder.drawn.clear()
        self.module.zero_grad()
        with (
            patch.object(torch.Tensor, "uniform_", recorded_uniform),
            patch.object(MemoryBanks, "draw", recorded_draw),
            patch.object(self.encoder, "encode_with_tokens", recorded_encode),
            patch.object(self.encoder, "embed", recorded_embed),
        ):
            loss = self.module(packed)
        loss.backward()
        self.module.commit()
        (x,), num_passes = xs, self.case.options.num_passes
        deltas = [point - x.detach() for point in found[-num_passes:]]
        draws = self._draws(batch, packed, uniforms, drawn_negatives, len(found) - num_passes)
        return self._outcome(loss, deltas), draws

    def _draws(self, batch, packed, uniforms, drawn_negatives, num_clean):
        """And the masks' own faults: one mask in all passes, another in the clean one."""

        def split(values):
            return by_sentence(values, packed)

        uniform = split(uniforms[0]) if uniforms else [np.zeros((e.sentence.length, EMBEDDING_SIZE)) for e in batch]
        clean = passes = None
        if self.case.has_dropout:
            of_x, of_clean = self.encoder.drawn[0], self.encoder.drawn[1 : 1 + num_clean]
            of_passes = self.encoder.drawn[1 + num_clean :]
            assert len(of_passes) == self.case.options.num_passes
            assert all(torch.equal(mask, of_passes[0]) for mask in of_passes)
            assert not any(torch.equal(mask, of_passes[0]) for mask in of_clean)
            clean = Masks(split(of_x), split(of_clean[0]) if of_clean else None)
            passes = Masks(None, split(of_passes[0]))
        negatives = None
        if drawn_negatives:
            negatives = [None] * len(batch)
            for entry in drawn_negatives[0]:
                for row in entry.rows.tolist():
                    negatives[row] = entry.bank_rows.tolist()
        return Draws(uniform, clean, passes, negatives)

    def _outcome(self, loss, deltas):
        values = {"loss": float(loss.detach()), **{f"delta {t}": d.numpy() for t, d in enumerate(deltas, start=1)}}
        if self.case.kind == "carl":
            state = {name: value for owner in self.objective.stateful() for name, value in owner.state_dict().items()}
            values["banks"] = state["carl_banks"].transpose(0, 1).numpy().copy()
            values["written"] = state["carl_is_written"].numpy().copy()
            values["z"] = state["carl_log_z"].exp().numpy()
        grads = {name: p.grad.numpy().copy() for name, p in self.named_parameters().items()}
        moves = random_moves(parameters_of(self.case))
        parts = np.concatenate([(grads[name] * moves[name]).ravel() for name in grads])
        if self.case.learning_rate:
            values.update({f"gradient of {name}": grad for name, grad in grads.items()})
            with torch.no_grad():
                for name, parameter in self.named_parameters().items():
                    parameter -= self.case.learning_rate * torch.tensor(grads[name])
        return Outcome(values, parts.sum(), np.abs(parts).sum())


def pack_examples(batch):
    sentences = [example.sentence for example in batch]
    return pack(sentences, labels=[example.label for example in batch], row_ids=[example.row for example in batch])

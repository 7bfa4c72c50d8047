"""Drives the real `Step` of the text-level systems on the toy encoder, and compares it with the transcriptions.

Dropout masks are torch's own, recorded where the toy encoder draws them; the transcription takes them as given.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts
from tests.oracle.classes.classification import NUM_CLASSES
from tests.oracle.comparison import Difference, difference, gradient_sizes
from tests.oracle.texts.text_level import Draws, make_model_parameters, make_victim_parameters
from tests.oracle.texts.text_level_cases import BATCHES, TRANSCRIBED
from tests.oracle.toy_encoder import HIDDEN_SIZE, Masks
from tests.oracle.toy_encoder_torch import OF_CLASSIFIER, ToyEncoder, by_sentence, gradients_of, make_head, pack

CLASS_NAMES = tuple("abcde"[:NUM_CLASSES])


def objective_options(case):
    """The shipped objective's name, and its options."""
    o, system = case.options, case.system
    if system.startswith("bat"):
        labels = None if o.obstinate_labels is None else [CLASS_NAMES[i] for i in o.obstinate_labels]
        shared = {"margin": o.margin, "distance_of": o.distance_of, "obstinate_labels": labels}
        if system == "bat_triplet":
            return system, {"weight_triplet": o.weight_triplet, **shared}
        return system, {"weight_fickle": o.weight_fickle, "weight_obstinate": o.weight_obstinate, **shared}
    soft = {"targets": "soft", "victim": "toy"} if system.endswith("_soft") else {}
    weight = {"weight_adversarial": o.weight_adversarial} if system.startswith(("ada", "a2t")) else {}
    return system.removesuffix("_soft"), {**soft, **weight}


def make_model(parameters, has_dropout):
    return ToyEncoder(parameters, has_dropout), make_head(parameters, NUM_CLASSES)


def toy_victim(batch):
    """Probabilities (B, C) of the toy victim, as the run hands them to an objective."""
    encoder, head = make_model(make_victim_parameters(), has_dropout=False)
    with torch.no_grad():
        return head(encoder.encode(encoder.embed(batch), batch)).softmax(1)


def batch_of(examples, names):
    """A batch with its variants, as a run's data bring them: the sentence itself in a missing text's place."""
    variants = {}
    for name in names:
        texts = [getattr(example, name) for example in examples]
        filled = pack([example.sentence if text is None else text for example, text in zip(examples, texts)])
        variants[name] = replace(filled, is_present=torch.tensor([text is not None for text in texts]))
    whole = pack([example.sentence for example in examples], labels=[example.label for example in examples])
    return replace(whole, variants=variants)


@dataclass(frozen=True)
class TorchStep:
    """What one step found, and the masks it used."""

    loss: float
    gradients: dict
    draws: Draws
    num_masks: int


class TorchRun:
    def __init__(self, case, seed=0, micro_batch_size=None):
        torch.manual_seed(seed)
        self.case, name_and_options = case, objective_options(case)
        self.encoder, head = make_model(make_model_parameters(), case.has_dropout)
        name, options = name_and_options
        self.objective = resolve_objective(name)(HIDDEN_SIZE, head, **options).double()
        self.objective.begin(RunFacts(12, 3, 20, label_names=CLASS_NAMES))
        if self.objective.needs.victim is not None:
            self.objective.victim_probabilities = toy_victim
        config = PerturbationConfig()
        self.module = Step(self.encoder, self.objective, config, micro_batch_size=micro_batch_size).train()

    def named_parameters(self):
        """The module's parameters under the transcription's names."""
        head = dict(self.objective.classifier.named_parameters())
        return {**dict(self.encoder.named_parameters()), **{n: head[theirs] for n, theirs in OF_CLASSIFIER.items()}}

    def step(self, examples):
        batch = batch_of(examples, self.objective.needs.variants)
        self.encoder.drawn.clear()
        self.module.zero_grad()
        loss = self.module(batch)
        loss.backward()
        self.module.commit()
        return TorchStep(
            float(loss.detach()), gradients_of(self.named_parameters()), self._draws(batch), len(self.encoder.drawn)
        )

    def _draws(self, batch):
        """By the order in which the step draws masks: of the clean pass, then of each variant's."""
        if not self.case.has_dropout:
            return Draws()
        drawn, found = iter(self.encoder.drawn), {}

        def split(texts):
            return by_sentence(next(drawn), texts)

        if self.objective.needs.clean:
            found["clean"] = Masks(split(batch), split(batch))
        else:
            # X's, of which nothing is made.
            next(drawn)
        for name in batch.variants:
            texts = batch.variants[name]
            found[name] = Masks(split(texts), split(texts))
        return Draws(**found)


@lru_cache(maxsize=None)
def torch_steps(case, seed=0):
    run = TorchRun(case, seed)
    return [run.step(batch) for batch in BATCHES]


def differences(case, transcribed=None, seed=0, has_every_gradient=False):
    """A list of `Difference`s of losses and gradients; empty where both sides agree.

    Args:
        has_every_gradient: compare that by each parameter, and not along one direction of all.
    """
    return compared(case, torch_steps(case, seed), transcribed, has_every_gradient)


def compared(case, steps, transcribed=None, has_every_gradient=False):
    """As `differences`, for steps of the torch side that were taken elsewhere."""
    kind = TRANSCRIBED[case.system] if transcribed is None else transcribed
    side, found = kind(case.options, make_model_parameters(), make_victim_parameters()), []
    for number, (batch, theirs) in enumerate(zip(BATCHES, steps, strict=True), start=1):
        sizes = {"loss": difference(side.loss(batch, theirs.draws), theirs.loss)}

        def loss_of(parameters, batch=batch, theirs=theirs):
            return side.loss(batch, theirs.draws, parameters)

        sizes.update(gradient_sizes(loss_of, side.parameters, theirs.gradients, has_every_gradient))
        found += [Difference(number, name, float(size)) for name, size in sizes.items() if size]
    return found

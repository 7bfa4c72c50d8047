"""Does the attack measure robustness, or only that it found no gradient? Five checks in AutoAttack's spirit.

A classifier can look robust because its gradients say nothing (Athalye et al., "Obfuscated gradients give a false sense
of security", ICML 2018; Croce & Hein 2020). Each check looks for one trace of that and says in plain words what it saw.

The checks run PGD (Auto-PGD where that is the method) on some of the texts that are right without an attack. Where they
need one radius they take, of those attacked and of some as large as the embeddings themselves, the one that leaves
nearest to half of these texts right: where an attack moves nothing, or leaves nothing, two cannot be told apart.
"""

from dataclasses import dataclass, replace
from typing import Dict, Iterator, List, Optional, Tuple

import numpy as np

from fastadv.config.embedding_attack import APGD_FIRST_STEP, DEFAULT_BATCH_SIZE, ONE_STEP, PGD_TRAVEL, AttackSettings
from fastadv.data.labelled.find import LabelledTexts
from fastadv.evaluation.embeddings.classifier_attack import (
    ClassifierUnderAttack,
    Texts,
    search,
    with_rows,
)
from fastadv.evaluation.embeddings.search import Found, Radius, Target, attacking
from fastadv.files.progress import Bar
from fastadv.perturbation.ball import entries_root, sentence_rms

MAX_VANISHED = 0.01
"""share of texts without a gradient above which the attack cannot be trusted"""
MAX_LEFT = 0.02
"""accuracy that may be left at a radius as large as the embeddings"""
LARGE_RADII = (0.1, 0.3, 1.0)
"""multiples of the norm of a text's own embeddings"""
DEFAULT_CHECKED = 200


@dataclass(frozen=True)
class Check:
    """What one check saw."""

    name: str
    is_warning: bool
    text: str
    """one line: what was seen, and where it warns what follows"""
    numbers: Dict[str, float]


@dataclass(frozen=True)
class _Trial:
    """A radius and what the attack leaves right there."""

    name: str
    accuracy: float
    epsilon: Optional[float] = None
    multiple: Optional[float] = None
    """of the norm of a text's embeddings, where ``epsilon`` is None"""


def check_attack(
    classifier,
    data: LabelledTexts,
    result: ClassifierUnderAttack,
    max_texts: int = DEFAULT_CHECKED,
    batch_size: int = DEFAULT_BATCH_SIZE,
    progress: bool = False,
) -> List[Check]:
    """All checks of one model's attack, those that found nothing included.

    Args:
        data: the texts of ``result``.
        max_texts: the checks' own attacks run on so many of the texts that are right without an attack, drawn by the
            settings' seed.
    """
    checks = [_gradients(result)]
    right = np.flatnonzero(result.is_right_clean)
    if len(right):
        drawn = np.random.default_rng(result.settings.seed).permutation(right)[:max_texts]
        rows = np.sort(drawn)
        with attacking(classifier), Bar(desc="checks", unit=" texts", disable=not progress, total=0) as bar:
            runs = _Runs(classifier, with_rows(data, rows), result, rows, batch_size, bar)
            large, largest = runs.large_trials()
            tried = [_Trial(f"epsilon {e:g}", float(a), epsilon=e) for e, a in zip(runs.settings.epsilons, runs.left)]
            # The larger of two that are as near: where no radius moves anything, the largest must.
            trial = min(reversed([*tried, *large]), key=lambda one: abs(one.accuracy - 0.5))
            checks += [runs.more_steps(trial), runs.random_direction(trial)]
        if result.is_right_transferred is not None:
            checks.append(_transfer(result))
        checks.append(_large_radius(largest, len(rows)))
    return checks


def _check(name: str, is_warning: bool, seen: str, follows: str, **numbers: float) -> Check:
    return Check(name, is_warning, f"{seen}: {follows}" if is_warning else seen, numbers)


def warnings_of(checks: List[Check]) -> List[str]:
    """The lines of those that warn."""
    return [check.text for check in checks if check.is_warning]


def _gradients(result: ClassifierUnderAttack) -> Check:
    share = float(result.has_vanished.mean())
    seen = f"the gradient is zero or not finite at {share:.1%} of the texts"
    follows = "the attack cannot move these, so that their accuracy says nothing of robustness"
    return _check("gradients", share > MAX_VANISHED, seen, follows, share_without_gradient=share)


def _transfer(result: ClassifierUnderAttack) -> Check:
    own = result.is_right_first_run.mean(axis=1)
    other = result.is_right_transferred.mean(axis=1)
    number = int(np.argmax(own - other))
    epsilon, gap = result.settings.epsilons[number], float(own[number] - other[number])
    seen = (
        f"at epsilon {epsilon:g} the attack on the model itself leaves {own[number]:.1%} right and the one transferred "
        f"from the other model {other[number]:.1%}"
    )
    follows = "an attack that knows the model should do better, so its gradients may be hidden"
    numbers = {"epsilon": epsilon, "accuracy_own": float(own[number]), "accuracy_transferred": float(other[number])}
    return _check("transfer", gap > 0, seen, follows, **numbers)


def _large_radius(left: float, num_texts: int) -> Check:
    seen = f"a perturbation as large as the embeddings themselves leaves {left:.1%} of {num_texts} texts right"
    follows = "there nothing of the text need be left, so the attack does not find what is there to be found"
    return _check("large_radius", left > MAX_LEFT, seen, follows, accuracy=left, num_texts=num_texts)


class _Runs:
    """The checks' own attacks, on texts ``rows`` of ``result``, all of them right without an attack."""

    def __init__(self, classifier, data: LabelledTexts, result: ClassifierUnderAttack, rows, batch_size: int, bar: Bar):
        self._rows, self._bar = rows, bar
        self.texts = Texts(classifier, data, batch_size)
        given = result.settings
        if given.method in ONE_STEP:
            # One step says nothing of more steps.
            self.settings = replace(given, method="pgd", num_steps=10, step_sizes=None)
        else:
            self.settings = given
        # Of the attack on the model itself: what a transferred one fools says nothing of it.
        self._is_right = np.logical_and.accumulate(result.is_right_first_run[:, rows], axis=0)
        self.left = self._is_right.mean(axis=1)

    def large_trials(self) -> Tuple[List[_Trial], float]:
        """What is left at each of `LARGE_RADII`; as ever, what a smaller radius fools stays fooled."""
        is_right, trials = self._is_right[-1].copy(), []
        for multiple in LARGE_RADII:
            trial = _Trial(f"{multiple:g} times the embeddings' own norm", 1.0, multiple=multiple)
            for chosen, found in self._searches(trial, self.settings, np.flatnonzero(is_right)):
                is_right[chosen] = found.is_right.cpu().numpy()
            trials.append(replace(trial, accuracy=float(is_right.mean())))
        return trials, trials[-1].accuracy

    def more_steps(self, trial: _Trial) -> Check:
        num_steps = 2 * self.settings.num_steps
        accuracy_one, loss_one = self._outcome(trial, 1)
        accuracy_many, loss_many = self._outcome(trial, num_steps)
        # Where as many are right the losses decide: on a linear model one step is as good as any number.
        is_no_worse = accuracy_many > accuracy_one or (accuracy_many == accuracy_one and loss_many <= loss_one)
        seen = (
            f"at {trial.name} one step leaves {accuracy_one:.1%} right and {num_steps} steps {accuracy_many:.1%} "
            f"(mean loss {loss_one:.3g} and {loss_many:.3g})"
        )
        follows = "more steps should hurt, so the steps lead nowhere"
        numbers = {"accuracy_one_step": accuracy_one, "accuracy_more_steps": accuracy_many, "num_steps": num_steps}
        return _check("more_steps", is_no_worse and accuracy_one > 0, seen, follows, **numbers)

    def random_direction(self, trial: _Trial) -> Check:
        is_right = np.empty(self.texts.num_texts, bool)
        for chosen, target, radius in self._targets(trial, range(self.texts.num_texts)):
            # A seed that no restart has.
            draws = self._rows[chosen].tolist()
            delta = target.random_delta(draws, (self.settings.seed, 0), radius, self.settings.norm, on_surface=True)
            is_right[chosen] = target.at(delta).is_right.cpu().numpy()
        at_random = float(is_right.mean())
        is_warning = at_random <= trial.accuracy and trial.accuracy > 0
        seen = f"at {trial.name} a random direction leaves {at_random:.1%} right and the attack {trial.accuracy:.1%}"
        follows = "a random direction is as strong, so the gradient does not show where the loss rises"
        numbers = {"accuracy_random": at_random, "accuracy_attack": trial.accuracy}
        return _check("random_direction", is_warning, seen, follows, **numbers)

    def _outcome(self, trial: _Trial, num_steps: int) -> Tuple[float, float]:
        """Accuracy and mean loss at the end of one run from the texts themselves."""
        size = APGD_FIRST_STEP if self.settings.method == "apgd" else PGD_TRAVEL / num_steps
        settings = replace(self.settings, num_steps=num_steps, step_sizes=(size,))
        is_right, losses = np.empty(self.texts.num_texts, bool), np.empty(self.texts.num_texts)
        for chosen, found in self._searches(trial, settings, range(self.texts.num_texts)):
            is_right[chosen], losses[chosen] = found.is_right.cpu().numpy(), found.end.losses.double().cpu().numpy()
        return float(is_right.mean()), float(losses.mean())

    def _searches(self, trial: _Trial, settings: AttackSettings, rows) -> Iterator[Tuple[np.ndarray, Found]]:
        for chosen, target, radius in self._targets(trial, rows):
            yield chosen, search(target, settings, radius, settings.step_sizes[0], 0, self._rows[chosen].tolist())

    def _targets(self, trial: _Trial, rows):
        """Texts, a target around them, and the radius (B,) of each."""
        for chosen, target in self.texts.targets(rows, self.settings, self._bar):
            yield chosen, target, self._radius(trial, target)

    def _radius(self, trial: _Trial, target: Target) -> Radius:
        if trial.epsilon is not None:
            return trial.epsilon
        active = None if self.settings.perturb_special_tokens else ~target.batch.is_special
        rms, num_entries = sentence_rms(target.x, target.batch, active)
        return trial.multiple * rms * entries_root(num_entries, self.settings.norm)

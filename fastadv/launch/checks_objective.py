"""Which settings go with an objective's class: labels, the clean pass, the search."""

from itertools import chain
from typing import Iterator

from fastadv.config.own_class import find_class
from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.encoder.classifier.classification_head import POOLINGS_WITH_HEAD
from fastadv.launch.checks import refuse
from fastadv.launch.checks_text import text_contradictions, uses_word_sets
from fastadv.objectives.base import SHIPPED, Objective, resolve_objective
from fastadv.perturbation import Search


def check_objective(config: Config, objective: type[Objective]) -> None:
    """Refuses labels without use for them, and an objective without what it needs.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    if config.perturbation.search is not None:
        find_class(config.perturbation.search, Search, "perturbation.search")
    needs = objective.needs_under(config.objective_options)
    for key, expected in chain(_contradictions(config, objective), text_contradictions(config, needs)):
        refuse(config, key, expected)


def _contradictions(config: Config, objective: type[Objective]) -> Iterator[tuple[str, str]]:
    data, dev, perturbation, needs = config.data, config.dev, config.perturbation, objective.needs
    where = f"where objective is {config.objective}"
    if needs.labels and data.label_field is None:
        yield "data.label_field", f"the column of the classes (label, for demo:imdb) {where}"
    if not needs.labels and data.label_field is not None:
        supervised = ", ".join(name for name in SHIPPED if resolve_objective(name).needs.labels)
        yield "data.label_field", f"null {where}, which uses no labels; those that do are {supervised}"
    if needs.labels and config.encoder.pooling not in POOLINGS_WITH_HEAD:
        allowed = " or ".join(POOLINGS_WITH_HEAD)
        yield "encoder.pooling", f"{allowed} {where}, whose classification head reads such vectors"
    reads_word_sets = not {"fickle", "obstinate"}.isdisjoint(needs.variants) or uses_word_sets(config)
    is_made_once = "adversarial" in needs.variants and needs.epoch_attack is None
    for key, is_needed, made_by in (
        ("word_sets", reads_word_sets, "a JSON file of `fastadv word-sets`"),
        ("pairs", is_made_once, "a CSV of `fastadv attack --write-pairs`"),
    ):
        is_given = getattr(data, key) is not None
        if is_needed and not is_given:
            yield f"data.{key}", f"{made_by} {where}"
        if is_given and not is_needed:
            yield f"data.{key}", f"null {where}, which has no use for it"
    if needs.adversarial is not None:
        allowed = needs.adversarial.methods
        if allowed is not None and perturbation.method not in allowed:
            yield "perturbation.method", f"{' or '.join(allowed)} {where}"
        plan = perturbation.resolve()
        if needs.adversarial.anchor and plan.sigma == 0 and plan.reuse != "free":
            is_one_step = perturbation.method in ("fgm", "fgsm")
            key, expected = ("method", "pgd") if is_one_step else ("sigma", "a number above 0")
            why = "at the text itself, where the search would start, what it raises is at its least and has no gradient"
            yield f"perturbation.{key}", f"{expected} {where}: {why}"
    if dev.patience is not None and (dev.data == "none" or config.train.eval_every is None):
        missing = "dev.data is none" if dev.data == "none" else "train.eval_every is null"
        yield "dev.patience", f"null where {missing}, for there are no scores to wait for"
    is_trained_on = data.label_field is not None and dev.data != "none" and dev.data == data.train
    if is_trained_on and dev.split == data.split:
        yield "dev.split", f"another split than data.split where dev.data is {show(dev.data)} like data.train"

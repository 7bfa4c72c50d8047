"""Which settings go with an objective's class: labels, the clean pass, the search."""

from itertools import chain
from typing import Iterator

from fastadv.config.own_class import find_class
from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.encoder.classifier.classification_head import POOLINGS_WITH_HEAD
from fastadv.launch.checks import Rule, refuse_first
from fastadv.launch.checks_text import text_rules, uses_word_sets
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
    refuse_first(config, chain(_rules(config, objective), text_rules(config, needs)))


def _rules(config: Config, objective: type[Objective]) -> Iterator[Rule]:
    data, dev, perturbation, needs = config.data, config.dev, config.perturbation, objective.needs
    where, is_labelled = f"where objective is {config.objective}", data.label_field is not None
    expected = f"the column of the classes (label, for demo:imdb) {where}"
    yield needs.labels and not is_labelled, "data.label_field", expected
    if is_labelled and not needs.labels:
        supervised = ", ".join(name for name in SHIPPED if resolve_objective(name).needs.labels)
        yield True, "data.label_field", f"null {where}, which uses no labels; those that do are {supervised}"
    expected = f"{' or '.join(POOLINGS_WITH_HEAD)} {where}, whose classification head reads such vectors"
    # Of null `check_encoder` knows more.
    yield needs.labels and config.encoder.pooling not in (None, *POOLINGS_WITH_HEAD), "encoder.pooling", expected
    reads_word_sets = not {"fickle", "obstinate"}.isdisjoint(needs.variants) or uses_word_sets(config)
    is_made_once = "adversarial" in needs.variants and needs.epoch_attack is None
    for key, is_needed, made_by in (
        ("word_sets", reads_word_sets, "a JSON file of `fastadv word-sets`"),
        ("pairs", is_made_once, "a CSV of `fastadv attack --write-pairs`"),
    ):
        is_given = getattr(data, key) is not None
        yield is_needed and not is_given, f"data.{key}", f"{made_by} {where}"
        yield is_given and not is_needed, f"data.{key}", f"null {where}, which has no use for it"
    if needs.adversarial is not None:
        plan, allowed = perturbation.resolve(), needs.adversarial.methods or (perturbation.method,)
        yield perturbation.method not in allowed, "perturbation.method", f"{' or '.join(allowed)} {where}"
        is_one_step = perturbation.method in ("fgm", "fgsm")
        key, expected = ("method", "pgd") if is_one_step else ("sigma", "a number above 0")
        why = "at the text itself, where the search would start, what it raises is at its least and has no gradient"
        is_flat = needs.adversarial.anchor and plan.sigma == 0 and plan.reuse != "free"
        yield is_flat, f"perturbation.{key}", f"{expected} {where}: {why}"
    missing = "dev.data is none" if dev.data == "none" else "train.eval_every is null"
    has_no_scores = dev.data == "none" or config.train.eval_every is None
    expected = f"null where {missing}, for there are no scores to wait for"
    yield dev.patience is not None and has_no_scores, "dev.patience", expected
    is_trained_on = is_labelled and dev.data != "none" and dev.data == data.train and dev.split == data.split
    expected = f"another split than data.split where dev.data is {show(dev.data)} like data.train"
    yield is_trained_on, "dev.split", expected

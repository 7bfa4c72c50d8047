"""Which settings go with an objective's class: labels, the clean pass, the search."""

from fastadv.config.own_class import find_class
from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.encoder.classifier.classification_head import POOLINGS_WITH_HEAD
from fastadv.errors import UserError
from fastadv.objectives.base import Objective
from fastadv.objectives.needs import AdversarialView
from fastadv.perturbation import Search


def check_objective(config: Config, objective: type[Objective]) -> None:
    """Refuses labels without use for them, and an objective without what it needs.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    if config.perturbation.search is not None:
        find_class(config.perturbation.search, Search, "perturbation.search")
    _check_labels(config, objective)
    _check_variants(config, objective)
    if objective.needs.adversarial is not None:
        _check_search(config, objective.needs.adversarial)
    _check_dev(config)


def _check_variants(config: Config, objective: type[Objective]) -> None:
    """Refuses an objective without the texts it needs, and texts without use for them."""
    data, wanted = config.data, set(objective.needs.variants)
    needs = {
        "word_sets": bool(wanted & {"fickle", "obstinate"}),
        "pairs": "adversarial" in wanted and objective.needs.epoch_attack is None,
    }
    made_by = {"word_sets": "a JSON file of `fastadv word-sets`", "pairs": "a CSV of `fastadv attack --write-pairs`"}
    for key, is_needed in needs.items():
        value = getattr(data, key)
        if is_needed and value is None:
            raise UserError(f"data.{key} = null: expected {made_by[key]} where objective is {config.objective}")
        if value is not None and not is_needed:
            raise UserError(
                f"data.{key} = {show(value)}: expected null where objective is {config.objective}, which has no use "
                "for it"
            )


def _check_labels(config: Config, objective: type[Objective]) -> None:
    label_field, name = config.data.label_field, config.objective
    if objective.needs.labels and label_field is None:
        raise UserError(
            "data.label_field = null: expected the column of the classes (label, for demo:imdb) where objective is "
            f"{name}"
        )
    if not objective.needs.labels and label_field is not None:
        from fastadv.objectives.base import SHIPPED, resolve_objective

        supervised = [shipped for shipped in SHIPPED if resolve_objective(shipped).needs.labels]
        raise UserError(
            f"data.label_field = {show(label_field)}: expected null where objective is {name}, which uses no labels; "
            f"those that do are {', '.join(supervised)}"
        )
    if objective.needs.labels and config.encoder.pooling not in POOLINGS_WITH_HEAD:
        raise UserError(
            f"encoder.pooling = {config.encoder.pooling}: expected {' or '.join(POOLINGS_WITH_HEAD)} where objective "
            f"is {name}, whose classification head reads such vectors"
        )


def _check_search(config: Config, view: AdversarialView) -> None:
    method, allowed = config.perturbation.method, view.methods
    if allowed is not None and method not in allowed:
        raise UserError(
            f"perturbation.method = {method}: expected {' or '.join(allowed)} where objective is {config.objective}"
        )
    if view.anchor:
        _check_start(config)


def _check_start(config: Config) -> None:
    perturbation = config.perturbation
    searched = perturbation.resolve()
    if searched.sigma > 0 or searched.reuse == "free":
        return
    if perturbation.method in ("fgm", "fgsm"):
        given = f"method = {perturbation.method}: expected pgd"
    else:
        given = "sigma = 0: expected a number above 0"
    raise UserError(
        f"perturbation.{given} where objective is {config.objective}: at the text itself, where the search would "
        "start, what it raises is at its least and has no gradient"
    )


def _check_dev(config: Config) -> None:
    dev = config.dev
    if dev.patience is not None and (dev.data == "none" or config.train.eval_every is None):
        missing = "dev.data is none" if dev.data == "none" else "train.eval_every is null"
        raise UserError(
            f"dev.patience = {dev.patience}: expected null where {missing}, for there are no scores to wait for"
        )
    if config.data.label_field is not None and dev.data != "none" and dev.data == config.data.train:
        if dev.split == config.data.split:
            raise UserError(
                f"dev.split = {show(dev.split)}: expected another split than data.split where dev.data is "
                f"{show(dev.data)} like data.train"
            )

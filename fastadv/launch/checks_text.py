"""Which settings of the search over texts go with each other, with the data, and with what an objective needs."""

import re
from typing import Iterator

from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.data.edits.kinds import OF_WORD_SETS, check_edits, expanded
from fastadv.launch.checks import Rule
from fastadv.objectives.needs import Needs


def uses_word_sets(config: Config) -> bool:
    """Whether edits that are named need synonyms or antonyms."""
    text = config.perturbation.text
    return not set(OF_WORD_SETS).isdisjoint(expanded([*text.edits, *text.flips]))


def text_rules(config: Config, needs: Needs) -> Iterator[Rule]:
    """(whether it is broken, key, what is expected of it) of each.

    Raises:
        UserError: a name that is no edit.
    """
    text, key = config.perturbation.text, "perturbation.text"
    check_edits(text.edits, f"{key}.edits")
    check_edits(text.flips, f"{key}.flips", keeps_meaning=False)
    where, has_text = f"where objective is {config.objective} with these objective_options", needs.text is not None
    yield has_text and not text.edits, f"{key}.edits", f"one edit or more, such as [typos], {where}"
    expected = f"an empty list {where}, which have no text view"
    hint = "text_positive, weight_text or weight_flip ask for one; text_adversarial always has one"
    yield bool(text.edits) and not has_text, f"{key}.edits", f"{expected} ({hint})"
    yield needs.flip and not text.flips, f"{key}.flips", f"one flip or more, such as [flips], {where}"
    yield bool(text.flips) and not needs.flip, f"{key}.flips", f"an empty list {where} (weight_flip asks for them)"
    not_of_a_word = [name for name in expanded(text.edits) if name == "join" or ":" in name]
    expected = f"edits of single words where {key}.choose is gradient, which {', '.join(not_of_a_word)} is not"
    yield text.choose == "gradient" and bool(not_of_a_word), f"{key}.edits", expected
    for pattern in text.protected:
        expected = f"regular expressions of some text, which {show(pattern)} is not"
        yield not _is_pattern(pattern), f"{key}.protected", expected
    is_cast_in_pieces = config.engine.precision == "fp32" and config.engine.zero_stage == 3
    expected = "auto or fp32 where engine.zero_stage is 3 and engine.precision is fp32"
    yield text.precision == "bf16" and is_cast_in_pieces, f"{key}.precision", expected
    is_narrow = config.engine.precision == "bf16"
    yield text.precision == "fp32" and is_narrow, f"{key}.precision", "auto or bf16 where engine.precision is bf16"
    is_instead = has_text and needs.text.is_positive
    expected = "null where objective_options.text_positive is instead, which has no other positive"
    is_reference = config.perturbation.resolve().reuse == "none"
    where = "where objective_options.text_positive is instead, whose keys the reference does not compute again"
    yield is_instead and is_reference, "perturbation.reuse", f"exact, adaptive or free {where}"
    yield is_instead and config.data.positive_field is not None, "data.positive_field", expected


def _is_pattern(text: str) -> bool:
    try:
        return re.compile(text).fullmatch("") is None
    except re.error:
        return False

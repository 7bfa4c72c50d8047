"""Which settings of the search over texts go with each other, with the data, and with what an objective needs."""

import re
from typing import Iterator

from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.data.edits.kinds import OF_WORD_SETS, check_edits, expanded
from fastadv.objectives.needs import Needs


def uses_word_sets(config: Config) -> bool:
    """Whether edits that are named need synonyms or antonyms."""
    text = config.perturbation.text
    return not set(OF_WORD_SETS).isdisjoint(expanded([*text.edits, *text.flips]))


def text_contradictions(config: Config, needs: Needs) -> Iterator[tuple[str, str]]:
    """(key, what is expected of it) of each setting that cannot be meant.

    Raises:
        UserError: a name that is no edit.
    """
    text, key = config.perturbation.text, "perturbation.text"
    check_edits(text.edits, f"{key}.edits")
    check_edits(text.flips, f"{key}.flips", keeps_meaning=False)
    where = f"where objective is {config.objective} with these objective_options"
    if needs.text is not None and not text.edits:
        yield f"{key}.edits", f"one edit or more, such as [typos], {where}"
    if needs.text is None and text.edits:
        hint = "text_positive, weight_text or weight_flip ask for one; text_adversarial always has one"
        yield f"{key}.edits", f"an empty list {where}, which have no text view ({hint})"
    if needs.flip and not text.flips:
        yield f"{key}.flips", f"one flip or more, such as [flips], {where}"
    if text.flips and not needs.flip:
        yield f"{key}.flips", f"an empty list {where} (weight_flip asks for them)"
    for pattern in text.protected:
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"{key}.protected", f"regular expressions; {show(pattern)} is none ({error})"
    if text.precision == "bf16" and config.engine.precision == "fp32" and config.engine.zero_stage == 3:
        yield f"{key}.precision", "auto or fp32 where engine.zero_stage is 3 and engine.precision is fp32"
    if needs.text is not None and needs.text.is_positive and config.data.positive_field is not None:
        yield (
            "data.positive_field",
            "null where objective_options.text_positive is instead, which has no other positive",
        )

"""What a measurement of robustness to edits is: which edits, how strong, and on which sentences."""

from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

from fastadv.config.flag import QUOTING, Flag, seed_flag
from fastadv.config.text_search import TextSearchConfig
from fastadv.errors import UserError

KEYBOARDS = get_args(get_type_hints(TextSearchConfig)["keyboard"])
MIN_SENTENCES = 16
"""below this neither retrieval nor a bootstrap over sentences says anything"""
_OF_NO_FILE = ("typos", "looks", "spaces")
_FLIPS_OF_NO_FILE = ("negation", "number", "name")


@dataclass(frozen=True)
class RobustnessSettings:
    """Every value has an effect on the numbers.

    Raises:
        UserError: a value that is not allowed, or an edit that needs word sets where none are given. Names of edits
            are checked where the edits are made (`fastadv.evaluation.robustness.edited`).
    """

    edits: Annotated[
        tuple[str, ...] | None,
        Flag(
            "edits that keep what a text says: typos, looks, spaces, synonyms (of --word_sets), a single one such as "
            "swap, or your own as my_package.my_module:function",
            default="typos looks spaces, and synonyms with --word_sets",
            metavar="EDIT",
        ),
    ] = None
    """None: those of `kept_edits`"""
    flips: Annotated[
        tuple[str, ...] | None,
        Flag(
            "edits that change what a text says: antonym (of --word_sets), negation, number, name, or your own",
            default="negation number name, and antonym with --word_sets",
            metavar="FLIP",
        ),
    ] = None
    """None: those of `flipping_edits`"""
    shares: Annotated[
        tuple[float, ...],
        Flag("shares of a text's words that are edited, besides one word", default="0.1 0.3 0.5", metavar="SHARE"),
    ] = (0.1, 0.3, 0.5)
    word_sets: Annotated[
        str | None, Flag("what `fastadv word-sets` wrote, for synonyms and antonym", metavar="FILE")
    ] = None
    keyboard: Annotated[str, Flag("the keyboard of the edit neighbour", choices=KEYBOARDS)] = "qwerty"
    texts: Annotated[
        str,
        Flag("sentences: a file, a folder, a dataset, demo:imdb-test, or a folder in SentEval layout (its STS-B)"),
    ] = "demo:imdb-test"
    field: Annotated[str, Flag("the JSON field or dataset column of the sentence")] = "text"
    split: Annotated[str | None, Flag("the split of a named dataset, or of STS-B", default="train; test")] = None
    quoting: Annotated[str, QUOTING] = "auto"
    num_sentences: Annotated[int, Flag("sentences drawn at most", least=MIN_SENTENCES)] = 500
    seed: Annotated[int, seed_flag("the draw of sentences, of edits, and of resamples")] = 0
    senteval: Annotated[
        str | None,
        Flag("a folder in SentEval layout: STS-B and SICK-R with both sentences edited too", metavar="FOLDER"),
    ] = None
    num_pairs: Annotated[int | None, Flag("pairs of STS-B and of SICK-R, drawn", default="all", least=2)] = None

    def __post_init__(self):
        for name in ("edits", "flips", "shares"):
            value = getattr(self, name)
            if value is not None and (not value or len(set(value)) < len(value)):
                raise UserError(f"--{name} {' '.join(map(str, value))}: expected one or more, each once")
        wrong = [share for share in self.shares if not 0 < share <= 1]
        if wrong:
            raise UserError(f"--shares {wrong[0]:g}: expected shares of words, more than 0 and at most 1")
        if self.keyboard not in KEYBOARDS:
            raise UserError(f"--keyboard {self.keyboard!r}: expected one of {', '.join(KEYBOARDS)}")
        for name, least in (("num_sentences", MIN_SENTENCES), ("num_pairs", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name} {value}: expected at least {least}")
        if self.num_pairs is not None and self.senteval is None:
            raise UserError("--num_pairs is of the pairs of --senteval, which is not given")
        for given, needing in ((self.edits, ("synonyms",)), (self.flips, ("antonym", "flips"))):
            needs = next((name for name in given or () if name in needing), None)
            if needs is not None and self.word_sets is None:
                raise UserError(f"{needs} needs --word_sets, a file that fastadv word-sets made")

    @property
    def kept_edits(self) -> tuple[str, ...]:
        """Names of the edits that keep the meaning."""
        if self.edits is not None:
            return self.edits
        return _OF_NO_FILE if self.word_sets is None else (*_OF_NO_FILE, "synonyms")

    @property
    def flipping_edits(self) -> tuple[str, ...]:
        """Names of the edits that change the meaning."""
        if self.flips is not None:
            return self.flips
        return _FLIPS_OF_NO_FILE if self.word_sets is None else ("antonym", *_FLIPS_OF_NO_FILE)

"""What an attack on text is, and which texts are attacked: settings, checked before anything runs."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastadv.config.flag import QUOTING, Flag, seed_flag
from fastadv.errors import UserError

UNTARGETED, REMAIN = GOALS = ("untargeted", "remain")

TEXTATTACK_RECIPES = {
    "deepwordbug": "swapped, lost and wrong letters",
    "pwws": "WordNet synonyms, by saliency",
    "textfooler": "near words of word vectors",
    "textbugger": "letters, look-alikes and near words",
    "bae": "words of a masked LM",
    "bert-attack": "sub-words of a masked LM",
    "a2t": "near words, ranked by gradients",
}
"""recipes of TextAttack → what they do"""
WORD_RECIPES = {
    "antonym": "one word to its antonym",
    "negation": "one negation more or less",
    "synonym": "words to their synonyms",
}
"""recipes by words (BAT) → what they do"""
RECIPES = (*TEXTATTACK_RECIPES, *WORD_RECIPES)
DEFAULT_GOALS = {"antonym": REMAIN, "negation": REMAIN}
"""of the recipes that change the true class; the others are untargeted"""

NEEDS_VECTORS = ("textfooler", "textbugger", "a2t")
NEEDS_MLM = ("bae", "bert-attack")
USED_BY = {
    "word_sets": ("antonym", "synonym"),
    "mlm": NEEDS_MLM,
    "word_vectors": NEEDS_VECTORS,
    "attack_data": tuple(TEXTATTACK_RECIPES),
}
"""which recipes read which file or folder"""
_NEEDED = ("word_sets", "mlm", "word_vectors")

ADV_STS_RECIPES = (*(name for name in TEXTATTACK_RECIPES if name != "a2t"), "synonym")
"""those of adversarial STS: they need no gradient of a class, and leave the meaning as it is"""
SIDES = ("both", "second")
"""which texts of a pair of adversarial STS may change"""

PAIR_ROLES = ("first", "second")
"""what the two texts of a pair are to a recipe that is told nothing else"""

DEFAULT_BATCH_SIZE = 32
"""texts a pass"""


@dataclass(frozen=True)
class TextAttackSettings:
    """What an attack is; every value has an effect on its rows.

    A field that a subclass adds is a setting like these: with a `Flag` it is on the command line.

    Raises:
        UserError: a value that is not allowed, a file that the recipe does not read, or one that it lacks.
    """

    recipe: Annotated[
        str,
        Flag(
            "attack the text itself. "
            + "; ".join(f"{name}: {about}" for name, about in {**TEXTATTACK_RECIPES, **WORD_RECIPES}.items()),
            choices=RECIPES,
        ),
    ]
    goal: Annotated[
        str | None,
        Flag(
            "what succeeds: another prediction, or the same after a change of the true class",
            default="remain for antonym and negation, else untargeted",
            choices=GOALS,
        ),
    ] = None
    """``untargeted`` or ``remain`` (`fastadv.evaluation.text.search`); None: the recipe's own"""
    max_queries: Annotated[int | None, Flag("queries a text or a pair", default="no limit", least=1)] = None
    """texts asked for at most, the text as given included; None: no limit"""
    max_seconds: Annotated[float | None, Flag("seconds a text or a pair, 0 for no limit", is_zero_none=True)] = 120.0
    """a text; None: no limit"""
    seed: Annotated[int, seed_flag("of drawn texts and of the attack")] = 0
    batch_size: Annotated[int, Flag("texts a pass", least=1)] = DEFAULT_BATCH_SIZE
    """texts a pass of the classifier"""
    word_sets: Annotated[
        str | None, Flag("what `fastadv word-sets` wrote, for antonym and synonym", metavar="FILE")
    ] = None
    """a file of `fastadv.data.variants.word_sets`"""
    mlm: Annotated[str | None, Flag("a masked language model, for bae and bert-attack", metavar="DIR")] = None
    """a folder of a masked language model"""
    word_vectors: Annotated[str | None, Flag("for textfooler, textbugger and a2t", metavar="FILE")] = None
    """a file of word vectors (``fastadv word-sets --vectors_out``)"""
    attack_data: Annotated[str | None, Flag("what `fastadv prepare-attack-data` wrote", metavar="DIR")] = None
    """the folder of ``fastadv prepare-attack-data``; None: the usual place"""

    def __post_init__(self):
        if self.recipe not in RECIPES:
            raise UserError(f"recipe {self.recipe!r}: expected one of {', '.join(RECIPES)}")
        own = DEFAULT_GOALS.get(self.recipe, UNTARGETED)
        goal = own if self.goal is None else self.goal
        if goal not in GOALS:
            raise UserError(f"goal {goal!r}: expected one of {', '.join(GOALS)}")
        if goal == REMAIN and own != REMAIN:
            raise UserError(
                f"goal {goal!r}: {self.recipe} keeps the true class, where an unchanged prediction is right; "
                f"expected {UNTARGETED}, or one of {', '.join(DEFAULT_GOALS)}"
            )
        object.__setattr__(self, "goal", goal)
        for name, least in (("max_queries", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} {value}: expected at least {least}")
        # Not a number fails every comparison.
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UserError(f"max_seconds {self.max_seconds}: expected more than 0")
        for name, recipes in USED_BY.items():
            if getattr(self, name) is not None and self.recipe not in recipes:
                raise UserError(f"{name} is read by {', '.join(recipes)}; {self.recipe} has no use for it")
            if getattr(self, name) is None and name in _NEEDED and self.recipe in recipes:
                raise UserError(f"{self.recipe} needs --{name}")

    @property
    def uses_textattack(self) -> bool:
        return self.recipe in TEXTATTACK_RECIPES


@dataclass(frozen=True)
class TextAttackOptions:
    """How an attack on text is run."""

    num_processes: Annotated[int, Flag("processes that attack", name="processes", least=1)] = 1
    num_threads: Annotated[int, Flag("torch threads of each process", name="threads", least=1)] = 1
    pairs: Annotated[
        str | None,
        Flag(
            "a csv file for the texts that were fooled and what fooled the model, to train on (data.pairs)",
            name="write-pairs",
            alias="write_pairs",
            metavar="FILE",
        ),
    ] = None


@dataclass(frozen=True)
class AdvStsOptions:
    """How adversarial STS attacks the similarity of pairs, besides the search."""

    side: Annotated[str, Flag("which texts of a pair may change", choices=SIDES)] = "both"
    pooling: str | None = None
    """how token states become one vector; None: each model's own"""
    prompt: str | None = None
    """text put before every sentence; None: each model's own"""
    prompt_name: str | None = None
    """which of each model's own prompts; None: its default"""
    has_control: Annotated[bool, Flag("leave out the first model with another's cosines", name="no_control")] = True


@dataclass(frozen=True)
class AttackedTexts:
    """Which texts are attacked: a draw without replacement from a labelled source, in its order."""

    source: Annotated[str, Flag("labelled texts: a file, a folder, a dataset, or demo:imdb", name="data")]
    split: Annotated[str, Flag("the split of a named dataset")] = "test"
    field: Annotated[str, Flag("the column of the text")] = "text"
    label_field: Annotated[str, Flag("the column of the class")] = "label"
    pair_field: Annotated[str | None, Flag("the column of the second text of pairs")] = None
    max_texts: Annotated[int | None, Flag("texts drawn", least=1)] = 1000
    """None: all"""
    seed: Annotated[int, seed_flag("of drawn texts and of the attack")] = 0
    labels: Annotated[tuple[str, ...] | None, Flag("draw texts of these classes only", metavar="CLASS")] = None
    """names of the classes whose texts are drawn from; None: all"""
    skip_labels: Annotated[
        tuple[str, ...], Flag("labels of rows that are left out, as -1 or -", default="none", metavar="LABEL")
    ] = ()
    quoting: Annotated[str, QUOTING] = "auto"
    pair_roles: Annotated[
        tuple[str, str] | None,
        Flag(
            "what the texts of pairs are to recipes: textfooler and a2t leave a premise as it is",
            default="the columns' names",
            metavar=("FIRST", "SECOND"),
        ),
    ] = None
    """None: the names of the columns"""

    @property
    def reading(self) -> dict[str, Any]:
        """How labelled texts are read, besides their columns."""
        return {"quoting": self.quoting, "skip_labels": self.skip_labels}


_ROUNDING = 1e-9
"""a fifth of 15 words are 3 words, whatever binary fractions say"""


@dataclass(frozen=True)
class Cap:
    """How much of a text may change for a success to count; None: any number, any share."""

    name: str
    words: str
    """in a table"""
    max_words: int | None = None
    max_share: float | None = None

    def admits(self, row) -> bool:
        """Whether a row of an attack (`fastadv.evaluation.text.rows`) changed no more than this."""
        is_few = self.max_words is None or row.num_words_changed <= self.max_words
        return is_few and (
            self.max_share is None or row.num_words_changed <= self.max_share * row.num_words + _ROUNDING
        )


ANY = Cap("any", "any change")
CAPS = (ANY, Cap("words_2", "≤ 2 words", max_words=2), Cap("share_20", "≤ 20 % of words", max_share=0.2))

"""The study's second part: sentence encoders that train on a text's own variants (docs/text-search.md).

All arms train as those of the first part do (`bench.studies.sentence.arms.SHARED`: MiniLM, the quickstart's rate, batch
and head, bfloat16), for 150 steps. The search, the edits, the search over embeddings and balance would make 4 · 3 · 2 ·
2 = 48 arms, before time and transfer; these 17 answer the questions:

| question | arms |
|---|---|
| What do typing errors gain at all? | ``untrained``, ``simcse``, ``random-typos``: one drawn copy as the positive |
| Does the search pay beyond augmentation, and how much of it? | ``random-typos``, ``worst4-typos``, ``worst8-typos``, \
``gradient-typos``; ``random-both`` beside ``worst8-both`` |
| Typing errors, synonyms, or both? | ``worst8-typos``, ``worst8-synonyms``, ``worst8-both`` |
| Does the search over embeddings add anything? | ``l2`` (the quickstart), ``worst8-both+l2`` |
| Does balance move flipped texts off, and at what price? | ``worst8-typos+balance``, ``worst8-both+balance`` |
| Is it the time? | ``simcse`` and ``random-typos`` in the time of ``worst8-typos``; ``simcse`` in that of \
``worst4-typos`` |
| Does it reach edits that were not trained on? | ``worst8-swap+insert`` under the other edits; ``worst8-typos`` under \
PWWS, ``worst8-synonyms`` under DeepWordBug |

Only worst of 8, the most of the search, is combined with edits, embeddings and balance; worst of 4 and gradient say by
typing errors alone what less of the search costs and gives. Side questions (`_aside`) have seed 0, and three seeds
where they are named by ``--arms``: with three of all the part would take an hour more.

Classifiers that are fine-tuned on top (plain, and by ``text_adversarial``) are the study's next step: arms whose
settings train from another arm's model, measured by the same attacks without a probe
(`bench.studies.sentence.arm.Measuring.run`).
"""

from dataclasses import replace
from typing import Dict, Tuple

from bench.studies.sentence.arms import BASELINE, EXPLORATION, SEARCH, TIME, UNTRAINED, Arm, Design, Sizes

EDITS = {"typos": "[typos]", "synonyms": "[synonyms]", "both": "[typos, synonyms]", "swap+insert": "[swap, insert]"}
"""what an arm is called by → the edits of its proposals"""
BALANCE = {
    "objective_options.weight_flip": "0.1",
    "objective_options.flip_margin": "0.0",
    "perturbation.text.flips": "[antonym, negation, number, name]",
}
L2 = {**SEARCH, "perturbation.norm": "l2"}
"""the quickstart's search over embeddings"""
SEARCHED = "worst8-typos"
"""the arm whose training time is the equal one"""
SEARCHED_LESS = "worst4-typos"


def _variant(choose: str, num_proposals: int, edits: str, cost: float, **others: Dict[str, str]) -> Arm:
    """A sentence's positive is one of its edited copies.

    Args:
        others: what it is combined with, a word of its name → settings.
    """
    settings = {
        "objective": "simcse",
        "objective_options.text_positive": "instead",
        "perturbation.text.edits": EDITS[edits],
        "perturbation.text.choose": choose,
        "perturbation.text.num_proposals": str(num_proposals),
    }
    for added in others.values():
        settings |= added
    search = f"{choose}{num_proposals}" if choose == "worst" else choose
    return Arm("+".join([f"{search}-{edits}", *others]), settings, cost=cost)


def _aside(arm: Arm) -> Arm:
    return replace(arm, group=EXPLORATION)


def _in_the_time_of(reference: str, arm: Arm) -> Arm:
    name, of_baseline = (f"{one}, time of {reference}" for one in (arm.name, BASELINE))
    return replace(arm, name=name, group=TIME, baseline=of_baseline, system=arm.name, reference=reference)


_SIMCSE = Arm(BASELINE, {"objective": "simcse"}, cost=0.75)
_RANDOM = _variant("random", 1, "typos", 0.8)

ARMS: Tuple[Arm, ...] = (
    _SIMCSE,
    Arm(UNTRAINED, None),
    _variant("worst", 8, "typos", 1.75),
    _in_the_time_of(SEARCHED, _SIMCSE),
    _RANDOM,
    _in_the_time_of(SEARCHED, _RANDOM),
    _variant("worst", 8, "both", 1.75),
    _variant("worst", 8, "both", 2.6, balance=BALANCE),
    _variant("worst", 4, "typos", 1.25),
    _in_the_time_of(SEARCHED_LESS, _SIMCSE),
    _variant("gradient", 8, "typos", 1.2),
    _aside(_variant("worst", 8, "synonyms", 1.75)),
    _aside(_variant("worst", 8, "swap+insert", 1.75)),
    _aside(_variant("worst", 8, "typos", 2.6, balance=BALANCE)),
    _aside(_variant("random", 1, "both", 0.8)),
    _aside(Arm("l2", L2, epsilon=0.2, cost=2.4)),
    _aside(replace(_variant("worst", 8, "both", 3.4, l2=L2), epsilon=0.2)),
)

# Embeddings are not attacked: the first part did that.
SIZES = Sizes(
    steps=150,
    num_sentences=0,
    num_probe_sentences=0,
    num_texts=100,
    # As many, so that they share a probe.
    num_texts_pwws=40,
    num_texts_textbugger=40,
    num_pairs=16,
    num_edited=200,
    num_mistyped=300,
)
SMOKE = Sizes(
    steps=2,
    batch_size=16,
    num_sentences=0,
    num_probe_sentences=0,
    num_geometry=64,
    num_texts=4,
    num_texts_pwws=2,
    num_texts_textbugger=2,
    num_pairs=2,
    num_edited=16,
    num_mistyped=16,
)
VARIANTS = Design(
    "variants",
    ARMS,
    SIZES,
    SMOKE,
    (BASELINE, "worst8-both+balance"),
    ("deepwordbug", "textbugger", "pwws"),
)


def uses_word_sets(arm: Arm) -> bool:
    """Whether it trains with synonyms or antonyms."""
    lists = [value for key, value in (arm.settings or {}).items() if key.startswith("perturbation.text.")]
    return any(word in value for value in lists for word in ("synonyms", "antonym"))

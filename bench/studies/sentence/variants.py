"""The study's second part: sentence encoders that train on a text's own variants (docs/text-search.md).

All arms train as those of the first part do (`bench.studies.sentence.arms.SHARED`: MiniLM, the quickstart's rate, batch
and head, bfloat16), for 150 steps. All combinations of search, edits, balance, keeping and the search over embeddings
would be far too many arms; these answer the questions:

| question | arms |
|---|---|
| What do typing errors gain at all? | ``untrained``, ``simcse``, ``random-typos``: one drawn copy as the positive |
| Does the search pay beyond augmentation, and how much of it? | ``random-typos``, ``worst4-typos``, ``worst8-typos``, \
``gradient-typos``; ``random-typos+keep`` beside ``worst8-typos+keep`` |
| Typing errors, synonyms, or both? | ``worst8-typos``, ``worst8-synonyms``, ``worst8-both`` |
| Does keeping near the vectors before training save STS? | ``worst8-typos+keep`` |
| Does balance move flipped texts off, and at what price? | ``worst8-typos+balance``, ``worst8-typos+keep+balance`` |
| Does the search over embeddings add anything? | ``worst8-typos+pgd2``, ``worst8-typos+keep+balance+pgd2``, and \
``worst8-typos+keep+gentle`` with half of the radius and a third of the weight |
| Is it the time? | ``simcse`` and ``random-typos`` in the time of ``worst8-typos`` |
| Does it reach edits that were not trained on? | ``worst8-swap+insert`` under the other edits; ``worst8-typos`` under \
PWWS, ``worst8-synonyms`` under DeepWordBug |
| Is there more to gain, and what does it cost? | ``worst8-typos+warm`` (a higher temperature) |

Side questions (`_aside`) have seed 0, and three seeds where they are named by ``--arms``. Classifiers that are
fine-tuned on top of these encoders: ``python -m bench.studies.text_study --part variants``.
"""

from dataclasses import replace
from typing import Dict, Tuple

from bench.studies.sentence.arms import BASELINE, EXPLORATION, TIME, UNTRAINED, Arm, Design, Sizes

EDITS = {"typos": "[typos]", "synonyms": "[synonyms]", "both": "[typos, synonyms]", "swap+insert": "[swap, insert]"}
"""what an arm is called by → the edits of its proposals"""
BALANCE = {
    "objective_options.weight_flip": "0.1",
    "objective_options.flip_margin": "0.0",
    "perturbation.text.flips": "[antonym, negation, number, name]",
}
KEEP = {"objective_options.weight_keep": "1.0"}
WARM = {"objective_options.temperature": "0.2"}
WIDE = {"perturbation.text.word_share": "[0.3, 0.8]", "perturbation.text.min_letters": "3"}
PGD = {
    "objective": "robustsentembed",
    "objective_options.weight_adversarial": "1.0",
    "perturbation.method": "pgd",
    "perturbation.norm": "l2",
    "perturbation.num_steps": "2",
    "perturbation.epsilon_relative": "0.2",
    "perturbation.alpha": "1.0",
    "perturbation.sigma": "0.0",
}
"""two steps over embeddings, each as long as the radius"""
GENTLE = {**PGD, "objective_options.weight_adversarial": "0.3", "perturbation.epsilon_relative": "0.1"}
"""half of the radius, a third of the weight"""
SEARCHED = "worst8-typos"
"""the arm whose training time is the equal one"""


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

_KEPT, _BALANCED = {"keep": KEEP}, {"keep": KEEP, "balance": BALANCE}

ARMS: Tuple[Arm, ...] = (
    _SIMCSE,
    Arm(UNTRAINED, None),
    _variant("worst", 8, "typos", 1.75),
    _in_the_time_of(SEARCHED, _SIMCSE),
    _RANDOM,
    _variant("worst", 8, "typos", 2.0, **_KEPT),
    _variant("worst", 8, "typos", 2.8, **_BALANCED),
    _in_the_time_of(SEARCHED, _RANDOM),
    _aside(_variant("random", 1, "typos", 1.1, **_KEPT)),
    _aside(_variant("worst", 4, "typos", 1.25)),
    _aside(_variant("gradient", 8, "typos", 1.2)),
    _aside(replace(_variant("worst", 8, "typos", 3.4, **_BALANCED, pgd2=PGD), epsilon=0.2)),
    _aside(replace(_variant("worst", 8, "typos", 2.6, **_KEPT, gentle=GENTLE), epsilon=0.1)),
    _aside(_variant("worst", 8, "both", 1.75)),
    _aside(_variant("worst", 8, "synonyms", 1.75)),
    _aside(_variant("worst", 8, "swap+insert", 1.75)),
    _aside(_variant("worst", 8, "typos", 2.6, balance=BALANCE)),
    _aside(replace(_variant("worst", 8, "typos", 2.5, pgd2=PGD), epsilon=0.2)),
    _aside(_variant("worst", 8, "typos", 1.75, warm=WARM)),
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
    (BASELINE, "worst8-typos+keep+balance"),
    ("deepwordbug", "textbugger", "pwws"),
    trained_from=(SEARCHED, "worst8-typos+keep+balance"),
)


def uses_word_sets(arm: Arm) -> bool:
    """Whether it trains with synonyms or antonyms."""
    lists = [value for key, value in (arm.settings or {}).items() if key.startswith("perturbation.text.")]
    return any(word in value for value in lists for word in ("synonyms", "antonym"))

"""TextAttack's recipes, as TextAttack builds them, with what they download replaced by what is at hand.

| recipe | searches with | needs |
|---|---|---|
| deepwordbug | letters swapped, replaced, dropped, inserted | |
| pwws | WordNet's synonyms | |
| textfooler | 50 nearest words, part of speech, sentence similarity | word vectors, sentence encoder |
| textbugger | letters, look-alikes, 5 nearest words, sentence similarity | word vectors, sentence encoder |
| bae, bert-attack | words of a masked LM, sentence similarity | masked LM, sentence encoder |
| a2t | 20 nearest words by gradient, part of speech, sentence similarity | word vectors, sentence encoder |

Three parts are published where no package index has them. The counter-fitted word vectors are ours (`Resources.
word_vectors`, made by ``fastadv word-sets``). The Universal Sentence Encoder is another encoder, with thresholds that
let the same share of changed sentences pass (``recipe_calibration.py``). A masked LM is given as a folder.
"""

import io
import logging
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
from unittest import mock

import numpy as np

from fastadv.config.text_attack import NEEDS_MLM, NEEDS_VECTORS
from fastadv.errors import UserError
from fastadv.evaluation.recipes.recipe_substitutes import SentenceModel, nearest_words, open_masked_lm
from fastadv.evaluation.recipes.textattack_offline import load_textattack, no_nltk_download
from fastadv.evaluation.resources.attack_data import attack_data_folder, check_attack_data
from fastadv.evaluation.resources.word_vectors import WordVectors
from fastadv.evaluation.text.time_limit import time_limit
from fastadv.evaluation.victims.text import OutOfTime

logger = logging.getLogger("fastadv")

_CLASSES = {
    "deepwordbug": "DeepWordBugGao2018",
    "pwws": "PWWSRen2019",
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "bae": "BAEGarg2019",
    "bert-attack": "BERTAttackLi2020",
    "a2t": "A2TYoo2021",
}
NEEDS_ENCODER = ("textfooler", "textbugger", "bae", "bert-attack", "a2t")
DEFAULT_ENCODER = "demo:minilm"
# Of `DEFAULT_ENCODER` in place of the Universal Sentence Encoder, as `python -m bench.recipe_calibration`
# prints them. A2T's encoder is of the same kind as ours, and keeps its threshold.
_DEFAULT_THRESHOLDS: Mapping[str, float] = {
    "textfooler": 0.8085,
    "textbugger": 0.7759,
    "bae": 0.9198,
    "bert-attack": 0.1943,
}


@dataclass
class Resources:
    """What recipes read beside the victim. Nothing is loaded before a recipe that needs it is built."""

    data_dir: Optional[str | Path] = None
    """an attack data folder; None: `attack_data_folder`"""
    word_vectors: Optional[str | Path] = None
    """a file of ``fastadv word-sets --vectors_out``, or a text file of word vectors"""
    sentence_encoder: str = DEFAULT_ENCODER
    """a folder, a Hub name in the local cache, or demo:minilm; never the victim, which would then be its own judge"""
    mlm: Optional[str | Path] = None
    """a folder with a masked LM and its tokenizer"""
    thresholds: Optional[Mapping[str, float]] = None
    """by recipe, in the recipe's own measure; None: those of demo:minilm, which no other encoder may use"""

    def check(self, recipe: str, victim: Optional[str | Path] = None) -> None:
        """Refuses, before anything is loaded, what a recipe cannot be built with.

        Args:
            victim: the folder of the attacked model.

        Raises:
            UserError: an unknown recipe, or something it needs is absent or not fit: what, and how to get it.
        """
        if recipe not in _CLASSES:
            raise UserError(f"recipe {recipe!r} given, expected one of {', '.join(_CLASSES)}")
        check_attack_data(attack_data_folder(self.data_dir), recipe)
        if recipe in NEEDS_VECTORS:
            if self.word_vectors is None:
                raise UserError(
                    f"recipe {recipe} needs word vectors: make them by `fastadv word-sets --vectors_out FILE`"
                )
            if not Path(self.word_vectors).expanduser().is_file():
                raise UserError(f"word vectors {str(self.word_vectors)!r}: there is no such file")
        if recipe in NEEDS_MLM:
            if self.mlm is None:
                raise UserError(
                    f"recipe {recipe} needs a masked LM, which no package carries: name a local folder of one"
                )
            if not (Path(self.mlm).expanduser() / "config.json").is_file():
                raise UserError(
                    f"masked LM {str(self.mlm)!r}: expected a folder with config.json, weights and a tokenizer"
                )
        if recipe in NEEDS_ENCODER:
            self._check_encoder(recipe, victim)

    def _check_encoder(self, recipe: str, victim: Optional[str | Path]) -> None:
        from fastadv.encoder.weights.source import find_model

        location = find_model(self.sentence_encoder).location
        if victim is not None and Path(location).resolve() == Path(victim).expanduser().resolve():
            raise UserError(f"the sentence encoder {self.sentence_encoder!r} is the attacked model; name another")
        if self.thresholds is None and self.sentence_encoder != DEFAULT_ENCODER:
            raise UserError(
                f"sentence encoder {self.sentence_encoder!r} has no thresholds; "
                "`python -m bench.recipe_calibration` finds them"
            )
        if self.thresholds is not None and recipe != "a2t" and recipe not in self.thresholds:
            raise UserError(f"the thresholds {dict(self.thresholds)!r} have none for recipe {recipe}")

    @cached_property
    def vectors(self) -> WordVectors:
        return WordVectors.load(self.word_vectors)

    @cached_property
    def nearest_words(self) -> Any:
        """The vectors as TextAttack's ``WordEmbedding``."""
        return nearest_words(self.vectors)

    @cached_property
    def sentence_model(self) -> SentenceModel:
        from fastadv.encoder import Encoder

        return SentenceModel(Encoder.from_pretrained(self.sentence_encoder))

    @cached_property
    def masked_lm(self) -> Any:
        """Model and tokenizer."""
        return open_masked_lm(Path(self.mlm).expanduser())

    def threshold(self, recipe: str) -> Optional[float]:
        """In place of the recipe's own; None: it keeps its own."""
        thresholds = _DEFAULT_THRESHOLDS if self.thresholds is None else self.thresholds
        return None if recipe == "a2t" else thresholds[recipe]


def build_recipe(name: str, model_wrapper: Any, resources: Optional[Resources] = None) -> Any:
    """TextAttack's ``Attack`` of a recipe.

    It cannot travel to another process whole, as TextAttack drops sentence encoders on the way: each builds its own.

    Args:
        name: one of `fastadv.config.text_attack.TEXTATTACK_RECIPES`.
        model_wrapper: the victim as TextAttack sees it; ``model_folder`` of it, if any, is where it was loaded from.

    Raises:
        UserError: as `Resources.check` and `load_textattack`.
    """
    resources = Resources() if resources is None else resources
    resources.check(name, getattr(model_wrapper, "model_folder", None))
    textattack = load_textattack(resources.data_dir)
    # Its own models compute where the victim does.
    textattack.shared.utils.device = device = getattr(model_wrapper, "device", "cpu")
    with _substituted(name, resources):
        attack = getattr(textattack.attack_recipes, _CLASSES[name]).build(model_wrapper)
    encoders = textattack.constraints.semantics.sentence_encoders
    for constraint in attack.constraints:
        if isinstance(constraint, encoders.UniversalSentenceEncoder):
            # It loads its model on its first use, where it has none.
            constraint.model = resources.sentence_model.to(device)
            constraint.threshold = resources.threshold(name)
    if name == "pwws":
        # Its candidates come out of a set, in an order of each process's own: ties would fall one way or another.
        transformation = attack.transformation
        transformation._get_replacement_words = _Sorted(transformation._get_replacement_words)
    return attack


class _Sorted:
    def __init__(self, call: Callable[..., List[str]]):
        self._call = call

    def __call__(self, *arguments, **options) -> List[str]:
        return sorted(self._call(*arguments, **options))


@contextmanager
def _substituted(name: str, resources: Resources) -> Iterator[None]:
    """While a recipe is built, what it would download comes from ``resources``."""
    from textattack.constraints.semantics.sentence_encoders.sentence_bert import sbert
    from textattack.shared.utils import GLOBAL_OBJECTS
    from textattack.transformations.word_swaps import word_swap_homoglyph_swap, word_swap_masked_lm

    with ExitStack() as stack:
        # PWWS asks for the wordnets of other languages.
        stack.enter_context(no_nltk_download())
        if name in NEEDS_VECTORS:
            # Where TextAttack keeps the vectors once they are loaded.
            vectors = {"textattack_counterfitted_GLOVE_embedding": resources.nearest_words}
            stack.enter_context(mock.patch.dict(GLOBAL_OBJECTS, vectors))
        if name == "textbugger":
            stack.enter_context(mock.patch.object(word_swap_homoglyph_swap, "open", _open_homoglyphs, create=True))
        if name in NEEDS_MLM:
            model, tokenizer = resources.masked_lm
            for attribute, given in (("AutoModelForMaskedLM", model), ("AutoTokenizer", tokenizer)):
                stack.enter_context(mock.patch.object(word_swap_masked_lm, attribute, _always(given)))
        if name == "a2t":
            model = resources.sentence_model
            given = SimpleNamespace(SentenceTransformer=lambda model_name: model)
            stack.enter_context(mock.patch.object(sbert, "sentence_transformers", given))
        yield


def _always(given: Any) -> Any:
    return SimpleNamespace(from_pretrained=lambda model_name, **options: given)


def _open_homoglyphs(path, *arguments, **options):
    """The wheel lacks this file, whose letters only attacks by differential evolution use; TextBugger's are in code."""
    try:
        return open(path, *arguments, **options)
    except FileNotFoundError:
        return io.StringIO("")


def candidate_counts(attack: Any, texts: Sequence[str], max_seconds: Optional[float] = None) -> Dict[str, float]:
    """How many replacements a recipe has for a word: a search with none finds nothing, whatever the victim.

    Args:
        texts: some of those that will be attacked.
        max_seconds: after which the words that have been counted will do; None: no limit. BERT-Attack tries 48^k
            replacements of a word of k tokens.

    Returns:
        num_words that the recipe may change, mean candidates_per_word as the transformation makes them,
        allowed_per_word as the constraints leave them, share_of_words with one allowed or more.
    """
    found: List[Tuple[int, int]] = []
    with suppress(OutOfTime), time_limit(max_seconds, OutOfTime):
        for counts in _counts_of_words(attack, texts):
            found.append(counts)
    made, allowed = zip(*found) if found else ((), ())
    if not made:
        return {"num_words": 0, "candidates_per_word": 0.0, "allowed_per_word": 0.0, "share_of_words": 0.0}
    return {
        "num_words": len(made),
        "candidates_per_word": float(np.mean(made)),
        "allowed_per_word": float(np.mean(allowed)),
        "share_of_words": float(np.mean(np.array(allowed) > 0)),
    }


def _counts_of_words(attack: Any, texts: Sequence[str]) -> Iterator[Tuple[int, int]]:
    """How many replacements each word has that may be changed, and how many of them are allowed."""
    from textattack.shared import AttackedText

    for text in map(AttackedText, texts):
        for index in range(len(text.words)):
            candidates = attack.transformation(
                text, pre_transformation_constraints=attack.pre_transformation_constraints, indices_to_modify=[index]
            )
            if candidates or index in _open_indices(attack, text):
                yield len(candidates), len(attack.filter_transformations(candidates, text, text)) if candidates else 0


def _open_indices(attack: Any, text: Any) -> set:
    """The words that the recipe may change at all."""
    indices = set(range(len(text.words)))
    for constraint in attack.pre_transformation_constraints:
        indices &= set(constraint(text, attack.transformation))
    return indices

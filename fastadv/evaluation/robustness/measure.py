"""Vectors of sentences and of their edited copies: how near they are, which rank they have, and which copy is nearer.

Shapes: ``N`` sentences, ``D`` entries a vector. A value is NaN where the edit has no place in the sentence.
"""

from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np

from fastadv.data.tokenize_texts import say_tokens
from fastadv.errors import UserError
from fastadv.evaluation.robustness.edited import UNCHANGED, Copies, Copy, Drawn, RobustnessData, Variant
from fastadv.evaluation.vectors.geometry import unit_vectors
from fastadv.evaluation.vectors.sts import sts_cosines
from fastadv.evaluation.vectors.vector_cache import encode_distinct, model_fingerprint
from fastadv.files.progress import Bar

METRICS = ("cosine", "centred_cosine", "retrieval", "reciprocal_rank")

Movement = dict[Variant, dict[str, np.ndarray]]
"""variant → metric of `METRICS` → a value (N,) a sentence"""
Choice = dict[tuple[Variant, Variant], np.ndarray]
"""(edit, flip) → (N,) 1 where the edited copy is nearer to the sentence than the flipped one, else 0"""
StsCosines = dict[tuple[Variant, str], np.ndarray]
"""(variant, STS set) → the cosine of each pair"""


_CHUNK = 1024
"""copies at a time that are compared with all sentences"""


class Measured(NamedTuple):
    """Of one model."""

    movement: Movement
    choice: Choice
    sts: StsCosines


def measure(encoder, data: RobustnessData, drawn: Drawn, batch_size: int = 64, progress: bool = False) -> Measured:
    """All values of one model.

    Args:
        encoder: anything with ``encode_texts(texts, batch_size, progress) -> (num_texts, D)``.
        drawn: the copies that ``data`` draws.

    Raises:
        UserError: vectors that are not finite.
    """
    moved = movement(encoder, data.sentences, drawn.copies, batch_size, progress)
    unread = changes_cut_off(encoder, data.sentences, drawn.copies)
    return Measured(moved, choices(moved, data, unread), _sts(encoder, data, drawn, batch_size, progress))


def movement(
    encoder,
    sentences: Sequence[str],
    copies: Mapping[Variant, Copies],
    batch_size: int = 64,
    progress: bool = False,
) -> Movement:
    """For each variant, of each sentence:

    * ``cosine`` of the copy's vector and the sentence's;
    * ``centred_cosine``, the same after the mean vector of all sentences is subtracted from both;
    * ``retrieval``, whether the copy is nearer to its sentence than to any other; a tie is a miss;
    * ``reciprocal_rank``, 1 / the rank of its sentence among all sentences.

    `UNCHANGED` is among them: each sentence as its own copy. Every different text is encoded once.
    """
    of_variants = {UNCHANGED: [Copy(text, 0) for text in sentences], **copies}
    every = (copy.text for some in of_variants.values() for copy in some if copy is not None)
    row_of = {text: row for row, text in enumerate(dict.fromkeys(every))}
    vectors = encode_distinct(encoder, list(row_of), batch_size, progress=progress).astype(np.float64)
    clean = vectors[[row_of[text] for text in sentences]]
    clean_unit, mean = unit_vectors(clean), clean.mean(axis=0)
    centred_unit, moved = unit_vectors(clean - mean), {}
    for variant, some in of_variants.items():
        rows = [number for number, copy in enumerate(some) if copy is not None]
        values = np.full((len(METRICS), len(sentences)), np.nan)
        if rows:
            edited = vectors[[row_of[some[number].text] for number in rows]]
            unit = unit_vectors(edited)
            ranks = _ranks(unit, clean_unit, np.array(rows))
            values[:, rows] = (
                np.einsum("nd,nd->n", unit, clean_unit[rows]),
                np.einsum("nd,nd->n", unit_vectors(edited - mean), centred_unit[rows]),
                ranks == 1,
                1 / ranks,
            )
        moved[variant] = dict(zip(METRICS, values))
    return moved


def _ranks(unit: np.ndarray, clean: np.ndarray, own: np.ndarray) -> np.ndarray:
    """(n,) the rank of row ``own[i]`` of ``clean`` (N, D) by its cosine to row i of ``unit`` (n, D); of equals the
    last. All rows are of length 1."""
    ranks = np.empty(len(own))
    for begin in range(0, len(own), _CHUNK):
        columns = own[begin : begin + _CHUNK]
        similarity = unit[begin : begin + _CHUNK] @ clean.T
        rows = np.arange(len(columns))
        of_own = similarity[rows, columns]
        similarity[rows, columns] = -np.inf
        ranks[begin : begin + _CHUNK] = 1 + (similarity >= of_own[:, None]).sum(axis=1)
    return ranks


def changes_cut_off(encoder, sentences: Sequence[str], copies: Mapping[Variant, Copies]) -> dict[Variant, np.ndarray]:
    """For each variant, (N,) whether its change of a sentence lies behind what the encoder reads of it.

    Args:
        encoder: has ``tokenize`` and ``max_length``; of one that has not nothing is known to be cut.
    """
    cut_off = {variant: np.zeros(len(sentences), bool) for variant in copies}
    if not hasattr(encoder, "tokenize"):
        return cut_off
    own = encoder.tokenize(sentences)[0]
    at_limit = [number for number, tokens in enumerate(own) if len(tokens) == encoder.max_length]
    for variant, some in copies.items():
        rows = [number for number in at_limit if some[number] is not None]
        tokens = encoder.tokenize([some[number].text for number in rows])[0]
        cut_off[variant][rows] = [of_copy == own[number] for number, of_copy in zip(rows, tokens)]
    return cut_off


def choices(moved: Movement, data: RobustnessData, cut_off: Mapping[Variant, np.ndarray]) -> Choice:
    """For each named edit and each flip, both at one word: whether the edited copy is nearer than the flipped one.

    NaN where a sentence lacks one of the two copies, or one is `changes_cut_off`; a tie is 0.
    """
    found = {}
    for edit in (variant for variant in data.curves if variant.share is None):
        for flip in data.flips:
            kept, flipped = moved[edit]["cosine"], moved[flip]["cosine"]
            is_known = np.isfinite(kept) & np.isfinite(flipped) & ~(cut_off[edit] | cut_off[flip])
            found[edit, flip] = np.where(is_known, kept > flipped, np.nan)
    return found


def _sts(encoder, data: RobustnessData, drawn: Drawn, batch_size: int, progress: bool) -> StsCosines:
    """Of the pairs as they are (`UNCHANGED`), and of those with both sentences edited."""
    variants = [UNCHANGED, *data.curves] if data.pairs else []
    found = {}
    for variant in Bar(variants, desc="STS", unit="edit", disable=not progress or not variants):
        if variant == UNCHANGED:
            sets = dict(data.pairs)
        else:
            sets = {name: drawn.pairs[variant, name].pairs for name in data.pairs}
        cosines = sts_cosines(encoder, sets, batch_size)
        found.update({(variant, name): of_set for name, of_set in cosines.items()})
    return found


def measure_models(
    models: Mapping[str, Callable],
    data: RobustnessData,
    drawn: Drawn,
    batch_size: int = 64,
    progress: bool = False,
    on_failure: Callable[[str, UserError], None] | None = None,
) -> tuple[dict[str, Measured], dict[str, dict]]:
    """Every model on the same copies; one model is held at a time.

    Args:
        models: name → () → `fastadv.Encoder`.
        on_failure: is given the name of a model that cannot be measured, and why; the others go on without it. None:
            that ends all.

    Returns:
        name → values; and name → fingerprint, `Encoder.settings`, and the size of vectors.

    Raises:
        UserError: a model cannot be measured, or with ``on_failure`` none can.
    """
    measured: dict[str, Measured] = {}
    facts, failure = {}, None
    for name, load in Bar(models.items(), desc="models", disable=not progress or len(models) < 2):
        try:
            encoder = load()
            # Of the sentences as they are: copies with typing errors are cut and unknown for other reasons.
            say_tokens(encoder, data.name, data.sentences)
            measured[name] = measure(encoder, data, drawn, batch_size, progress)
        except UserError as error:
            failure = error if name in str(error) else UserError(f"{name}: {error}")
            if on_failure is None:
                raise failure from error
            on_failure(name, error)
            continue
        facts[name] = {
            "fingerprint": model_fingerprint(encoder),
            **encoder.settings,
            "hidden_size": encoder.vector_size,
        }
    if failure is not None and not measured:
        raise failure
    return measured, facts

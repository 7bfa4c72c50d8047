"""The sentences that the table before → after is measured on: drawn once, shared by both models."""

from dataclasses import dataclass, field
from typing import List, Tuple

import numpy as np

from fastadv.config.schema import EvaluationConfig
from fastadv.data.tokenize_texts import say_tokens, sentence_ids
from fastadv.errors import UserError

MIN_SENTENCES = 16
"""below this neither retrieval nor a bootstrap over sentences says anything"""
NUM_PROBE_TRAIN = 2048
"""labelled sentences that fit the probe"""


@dataclass(frozen=True)
class HeldOut:
    """Unlabelled sentences for attacks and geometry, labelled ones for the probe (empty lists: no probe)."""

    sentences: List[str]
    """distinct for the encoder: no two are equal after truncation, whatever their white space"""
    probe_train: Tuple[List[str], List[int]] = field(default_factory=lambda: ([], []))
    """texts and labels 0 or 1"""
    probe_test: Tuple[List[str], List[int]] = field(default_factory=lambda: ([], []))


def load_held_out(cfg: EvaluationConfig, encoder, data_field: str = "text", quoting: str = "auto") -> HeldOut:
    """Draws ``cfg.num_sentences`` sentences of ``cfg.held_out`` and the probe's, by ``cfg.seed``.

    Args:
        encoder: whose ``tokenize`` says which sentences are equal after truncation; they count once.
        data_field: the JSON field or column that holds the sentence, where ``held_out`` is a file or data set.
        quoting: of a table, see `fastadv.data.sources.tables.is_quoted`.

    Raises:
        UserError: fewer distinct sentences, or fewer labelled ones, than the config asks for.
    """
    if cfg.num_sentences < MIN_SENTENCES:
        raise UserError(f"evaluation.num_sentences must be at least {MIN_SENTENCES}, got {cfg.num_sentences}")
    sentences = draw_distinct(_read(cfg, data_field, quoting), cfg.num_sentences, encoder, cfg.seed)
    if len(sentences) < cfg.num_sentences:
        raise UserError(
            f"evaluation.num_sentences is {cfg.num_sentences}, but {cfg.held_out} has only {len(sentences)} sentences "
            "that differ after truncation"
        )
    say_tokens(encoder, cfg.held_out, sentences)
    if cfg.num_probe_sentences == 0:
        return HeldOut(sentences)
    train, test = _draw_probe_sentences(cfg)
    return HeldOut(sentences, probe_train=train, probe_test=test)


def draw_distinct(texts: List[str], count: int, encoder, seed: int) -> List[str]:
    """The first ``count`` of the shuffled texts, leaving out those equal to an earlier one for the encoder."""
    order = np.random.default_rng(seed).permutation(len(texts))
    chosen, seen = [], set()
    for begin in range(0, len(order), count):
        window = [texts[i] for i in order[begin : begin + count]]
        ids = sentence_ids(encoder.tokenize, encoder.tokenize(window)[0], window)
        for text, own in zip(window, ids, strict=True):
            if own not in seen and len(chosen) < count:
                seen.add(own)
                chosen.append(text)
        if len(chosen) == count:
            break
    return chosen


def _read(cfg: EvaluationConfig, data_field: str, quoting: str) -> List[str]:
    from fastadv.data.sources.find import iterate_sentences

    return list(iterate_sentences(cfg.held_out, field=data_field, split=cfg.held_out_split, quoting=quoting))


def check_probe_sentences(cfg: EvaluationConfig) -> None:
    """UserError where the probe has too few sentences to be tested on, or too few are left to fit it."""
    if cfg.num_probe_sentences:
        _labelled_sentences(cfg)


def _labelled_sentences(cfg: EvaluationConfig) -> List[Tuple[str, int]]:
    from fastadv.data.sources.demo import demo_sentiment

    texts, labels = demo_sentiment()
    distinct = list({text: label for text, label in zip(texts, labels)}.items())
    num_test, allowed = cfg.num_probe_sentences, len(distinct) - NUM_PROBE_TRAIN
    if not MIN_SENTENCES <= num_test <= allowed:
        raise UserError(
            f"evaluation.num_probe_sentences must be 0 (no probe) or {MIN_SENTENCES} to {allowed}, got {num_test}"
        )
    return distinct


def _draw_probe_sentences(cfg: EvaluationConfig):
    """Train and test texts without overlap; a text that occurs twice would leak from one to the other."""
    distinct, num_test = _labelled_sentences(cfg), cfg.num_probe_sentences
    order = np.random.default_rng(cfg.seed).permutation(len(distinct))
    drawn = [distinct[i] for i in order[: num_test + NUM_PROBE_TRAIN]]
    test, train = drawn[:num_test], drawn[num_test:]
    return tuple(([text for text, _ in rows], [label for _, label in rows]) for rows in (train, test))

"""Texts with typing errors, the same for every model: noise at the letters, which no gradient has chosen."""

import numpy as np

WORD_SHARE = 0.3
"""of the words of at least `MIN_LETTERS` letters, the share that is mistyped"""
MIN_LETTERS = 4


def misspell(text: str, seed: int, number: int) -> str:
    """``text`` with about `WORD_SHARE` of its longer words mistyped once each.

    A mistake swaps two neighbouring letters, drops one, or types one twice, never the first. It depends on ``seed`` and
    the text's own ``number`` only. Words are split at spaces; one that is not letters alone stays as it is.
    """
    generator = np.random.default_rng((seed, number))
    words = text.split(" ")
    for at, word in enumerate(words):
        if len(word) >= MIN_LETTERS and word.isalpha() and generator.random() < WORD_SHARE:
            i = int(generator.integers(1, len(word) - 1))
            kind = int(generator.integers(3))
            middle = (word[i + 1] + word[i], word[i + 1], word[i] + word[i] + word[i + 1])[kind]
            words[at] = word[:i] + middle + word[i + 2 :]
    return " ".join(words)

"""Rows of text attacks made by hand, for the tests of what is said about them."""

import numpy as np

from fastadv.evaluation.text.rows import TextAttackRow

LABELS = ("world", "sports", "business", "science")


def made_row(row, outcome, label="world", num_words=10, num_words_changed=0, num_queries=20, **values):
    """One row; ``values`` override what the outcome says."""
    text = f"text number {row} of {label}"
    is_fooled = outcome == "succeeded"
    other = LABELS[(LABELS.index(label) + 1) % len(LABELS)] if label in LABELS else "other"
    is_right = outcome in ("succeeded", "failed")
    given = {
        "row": row,
        "first": text,
        "second": None,
        "label": label,
        "outcome": outcome,
        "first_adversarial": text.replace("number", "figure") if is_fooled else text,
        "second_adversarial": None,
        "predicted": {"error": ""}.get(outcome, label if is_right else other),
        "predicted_adversarial": {"error": ""}.get(outcome, label if outcome == "failed" else other),
        "score": float("nan") if outcome == "error" else 0.8,
        "score_adversarial": float("nan") if outcome == "error" else 0.3 if is_fooled else 0.7,
        "num_queries": num_queries,
        "num_words": num_words,
        "num_words_changed": num_words_changed,
        "seconds": 0.1,
        "note": "it failed" if outcome == "error" else "",
    }
    return TextAttackRow(**{**given, **values})


def drawn_rows(num_rows, seed=0, chances=(0.4, 0.3, 0.2, 0.1), labels=LABELS):
    """Rows of random outcomes (succeeded, failed, skipped, error), classes, lengths and numbers of changes."""
    rng, rows = np.random.default_rng(seed), []
    # The same classes and lengths for any seed: models are compared on the same texts.
    texts = np.random.default_rng(1234)
    for row in range(num_rows):
        label, num_words = labels[texts.integers(len(labels))], int(texts.integers(1, 40))
        outcome = ("succeeded", "failed", "skipped", "error")[rng.choice(4, p=chances)]
        changed = int(rng.integers(1, num_words + 1)) if outcome == "succeeded" else 0
        if outcome == "succeeded" and rng.random() < 0.5:
            changed = min(num_words, 2)
        limit = "queries" if outcome == "failed" and rng.random() < 0.3 else None
        values = {} if limit is None else {"note": limit}
        rows.append(made_row(row, outcome, label, num_words, changed, int(rng.integers(1, 300)), **values))
    return rows

"""Names of the terms of a loss in metrics.jsonl; docs/monitoring.md says what each of them is."""

TERMS = frozenset(
    f"loss_{name}"
    for name in (
        "adversarial",
        "classification",
        "clean",
        "contrast_adversarial",
        "contrast_clean",
        "contrast_original",
        "contrastive",
        "fickle",
        "flip",
        "keep",
        "kl",
        "kl_adversarial",
        "kl_clean",
        "momentum",
        "obstinate",
        "reconstruction",
        "rtd",
        "smoothness",
        "text",
        "triplet",
    )
)
"""Names that the documentation explains."""


def logged_name(name: str) -> str:
    """Key of a term in metrics.jsonl: a name that the documentation does not explain is marked as its objective's own.

    So it cannot be taken for, or hide, a key of the engine's.
    """
    return name if name in TERMS else f"own/{name}"

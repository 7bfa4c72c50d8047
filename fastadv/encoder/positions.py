"""How a model counts the positions of its tokens, as its configuration tells."""

from typing import Optional

# RoBERTa and its kin count from the padding id + 1: the first rows of the position table are never reached.
_COUNT_FROM_PADDING = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def first_position(config) -> int:
    """The position id of a sentence's first token."""
    return config.pad_token_id + 1 if config.model_type in _COUNT_FROM_PADDING else 0


def num_positions(config) -> Optional[int]:
    """The longest input a model has positions for, or None where its configuration sets no limit."""
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows <= 0:
        return None
    return rows - first_position(config)

"""How a model counts the positions of its tokens, as its configuration tells."""

from typing import Optional

from torch import Tensor

from fastadv.data.packing import PackedBatch

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


def position_ids(batch: PackedBatch, config) -> Tensor:
    """(T,) int64, the rows of the position table that the model itself gives a batch's tokens.

    RoBERTa and its kin tell padding by its token id, not by the mask: where a text spells ``<pad>`` out, that token
    sits at the padding's position, and those behind it are counted as if it were not there.
    """
    if config.model_type not in _COUNT_FROM_PADDING:
        return batch.position_ids
    is_padding = batch.input_ids == config.pad_token_id
    num_before = is_padding.cumsum(0)
    starts = batch.cu_seqlens[:-1].long()
    # Counted from each sentence's own start.
    num_before = num_before - (num_before - is_padding.long())[starts][batch.token_sentence]
    return (batch.position_ids - num_before).masked_fill(is_padding, config.pad_token_id)


def num_positions(config) -> Optional[int]:
    """The longest input a model has positions for, or None where its configuration sets no limit."""
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows <= 0:
        return None
    return rows - first_position(config)

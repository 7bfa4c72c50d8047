"""Word vectors, a sentence encoder and a masked LM in the shapes that TextAttack's recipes expect of theirs."""

from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fastadv.errors import UserError
from fastadv.evaluation.resources.word_vectors import WordVectors

_MAX_CACHED = 8192
"""texts whose vectors are kept: those of a few attacks"""
_MAX_NEIGHBOURS = 50
"""the most that a recipe asks for (TextFooler)"""
_MLM_POSITIONS = 512
"""TextAttack pads every text to so many tokens"""


class SentenceModel:
    """An encoder called as the Universal Sentence Encoder is, and asked as a SentenceTransformer is.

    A search compares many texts with one, and comes back to the same: the vectors of recent texts are kept.
    """

    def __init__(self, encoder: Any):
        self._encoder = encoder
        self._vectors: "OrderedDict[str, np.ndarray]" = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Vectors (num_texts, D)."""
        return torch.from_numpy(self.encode(texts))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors (num_texts, D)."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        found = dict(zip(missing, self._encoder.encode_texts(missing))) if missing else {}
        for text in texts:
            if text in self._vectors:
                found[text] = self._vectors[text]
                self._vectors.move_to_end(text)
        vectors = np.stack([found[text] for text in texts])
        self._vectors.update((text, found[text]) for text in missing)
        while len(self._vectors) > _MAX_CACHED:
            self._vectors.popitem(last=False)
        return vectors

    def to(self, device: Any) -> "SentenceModel":
        """Moves the encoder; vectors are on the host wherever it is."""
        self._encoder.to(device)
        return self


def nearest_words(vectors: WordVectors) -> Any:
    """TextAttack's ``WordEmbedding`` of the vectors, which looks a word's neighbours up in one product."""
    from textattack.shared import WordEmbedding

    class NearestWords(WordEmbedding):
        """Neighbours by cosine, that is by the distance of vectors of length 1, found when they are first asked for."""

        def __init__(self):
            words = dict(enumerate(vectors.words))
            super().__init__(vectors.directions, dict(vectors.index), words)
            self._nearest: Dict[int, List[int]] = {}

        def nearest_neighbours(self, index, topn):
            if topn > _MAX_NEIGHBOURS:
                raise ValueError(f"{topn} neighbours asked for, at most {_MAX_NEIGHBOURS} are looked up")
            index = self.word2index(index) if isinstance(index, str) else index
            if index not in self._nearest:
                cosines = self.embedding_matrix @ self.embedding_matrix[index]
                cosines[index] = -np.inf
                count = min(_MAX_NEIGHBOURS, len(cosines) - 1)
                near = np.argpartition(-cosines, count - 1)[:count]
                self._nearest[index] = near[np.lexsort((near, -cosines[near]))].tolist()
            return self._nearest[index][:topn]

    return NearestWords()


def open_masked_lm(folder: Path) -> Tuple[Any, Any]:
    """A masked LM and its tokenizer from a local folder, safetensors only.

    Raises:
        UserError: the folder holds no masked LM.
    """
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    try:
        options = {"local_files_only": True, "trust_remote_code": False}
        model = AutoModelForMaskedLM.from_pretrained(folder, use_safetensors=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, **options)
    except (OSError, ValueError, RuntimeError) as error:
        # Weights that do not fit the config are a RuntimeError of many lines.
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"masked LM {str(folder)!r} cannot be opened: {reason}") from error
    positions = getattr(model.config, "max_position_embeddings", _MLM_POSITIONS)
    if positions < _MLM_POSITIONS:
        raise UserError(f"masked LM {str(folder)!r} has {positions} positions, expected {_MLM_POSITIONS}")
    if tokenizer.mask_token is None:
        raise UserError(f"masked LM {str(folder)!r}: its tokenizer has no mask token")
    return model, tokenizer

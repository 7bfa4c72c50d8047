"""An encoder as attacks on classifiers ask it, for adversarial STS (RobustSentEmbed, section 4.2; METHODS.md, 5).

A pair of texts with the human score y gets s = low + (high − low)·max(0, cos) from the model, and s' once a text is
changed. It is fooled where |s' − y| ≥ |s − y| + 1. Every attack that fools a classifier fools an encoder by the same
search: to it the encoder is a classifier of two classes, "kept" and "moved", with

    P(kept) = ½ − (|s' − y| − |s − y| − 1) / (2·(high − low + 1))

which falls as the error grows, and is ½ where the pair is fooled. As given, every pair is "kept": each one is attacked.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from fastadv.config.text_attack import DEFAULT_BATCH_SIZE, SIDES
from fastadv.errors import UserError
from fastadv.evaluation.vectors.geometry import unit_rows
from fastadv.evaluation.victims.text import TimedVictim

MARGIN = 1.0
"""points that the error must grow by"""

MOVED, KEPT = NAMES = ("moved", "kept")

Text = Union[str, Tuple[str, str]]


@dataclass(frozen=True)
class Scale:
    """From cosines to human scores.

    Raises:
        UserError: a scale on which no pair could ever be fooled.
    """

    low: float
    high: float
    gain: float = 1.0
    offset: float = 0.0
    """the cosine is offset + gain·cos: of a control (``adv_sts.py``); clipped to 0 ... 1"""

    def __post_init__(self):
        if not self.high - self.low > MARGIN:
            raise UserError(f"--scale {self.low:g} {self.high:g}: expected a scale longer than {MARGIN:g} point")

    def scores(self, cosines: np.ndarray) -> np.ndarray:
        """s, of the shape of ``cosines``."""
        moved = self.offset + self.gain * np.asarray(cosines, dtype=np.float64)
        return self.low + (self.high - self.low) * np.clip(moved, 0, 1)

    @property
    def length(self) -> float:
        return self.high - self.low


def is_fooled(score: np.ndarray, score_before: float, human: float) -> np.ndarray:
    """|s' − y| ≥ |s − y| + 1, elementwise."""
    return np.abs(score - human) >= abs(score_before - human) + MARGIN


class SimilarityVictim(TimedVictim):
    """One encoder; `set_pair` says which pair it is asked about.

    Args:
        encoder: a `fastadv.Encoder`, or anything with ``encode_texts(texts, batch_size) -> (N, D)``.
        side: which texts of a pair change: ``both``, or ``second``, where it is asked for the second text alone.
        model_folder: where the encoder was loaded from: no judge of sentences may be the same model.
    """

    names = NAMES

    def __init__(
        self,
        encoder,
        scale: Scale,
        side: str = "both",
        batch_size: int = DEFAULT_BATCH_SIZE,
        model_folder: Optional[str] = None,
    ):
        if side not in SIDES:
            raise UserError(f"--side {side!r}: expected one of {', '.join(SIDES)}")
        super().__init__()
        self.model, self.scale, self.side, self.batch_size = encoder, scale, side, batch_size
        self.tokenizer, self.max_length = getattr(encoder, "tokenizer", None), getattr(encoder, "max_length", None)
        self.model_folder = model_folder
        self._vectors: Dict[str, np.ndarray] = {}
        self._pair: Tuple[str, str] = ("", "")
        self._human, self._before = 0.0, 0.0

    def set_pair(self, first: str, second: str, human: float) -> float:
        """Which pair is asked about from now on; returns s, the model's own score of it as given."""
        self._vectors.clear()
        self._pair, self._human = (first, second), human
        self._before = float(self.similarities([self.text_of(first, second)])[0])
        return self._before

    def text_of(self, first: str, second: str) -> Text:
        """What the victim is asked, of a pair."""
        return second if self.side == "second" else (first, second)

    @property
    def device(self) -> torch.device:
        """Where the encoder computes."""
        return self.model.device

    def forget(self) -> None:
        self._vectors.clear()

    def similarities(self, texts: Sequence[Text]) -> np.ndarray:
        """s' (N,) in float64. Each text of a pair is encoded once, so that the one that stays costs nothing again."""
        pairs = [(self._pair[0], text) if isinstance(text, str) else tuple(text) for text in texts]
        new = [text for text in dict.fromkeys(part for pair in pairs for part in pair) if text not in self._vectors]
        for at in range(0, len(new), self.batch_size):
            self.check_time()
            chosen = new[at : at + self.batch_size]
            vectors = np.asarray(self.model.encode_texts(chosen, batch_size=self.batch_size), dtype=np.float64)
            self._vectors.update(zip(chosen, unit_rows(vectors)))
        self.num_run += len(new)
        cosines = [float(self._vectors[first] @ self._vectors[second]) for first, second in pairs]
        return self.scale.scores(np.array(cosines))

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Probabilities (N, 2) of "moved" and "kept", in float64.

        Raises:
            OutOfTime: the time that `begin` gave is over.
        """
        self.num_asked += len(texts)
        scores = self.similarities(texts)
        growth = np.abs(scores - self._human) - abs(self._before - self._human) - MARGIN
        # On the border both are a half, and the first of equals is the prediction: moved.
        kept = 0.5 - growth / (2 * (self.scale.length + MARGIN))
        return torch.from_numpy(np.stack([1 - kept, kept], axis=1))

"""A classifier as attacks on text ask it: many small changes of one text at a time.

Texts of one question are tokenised together, those that come out as the same tokens run once, longest first, on packed
tokens; what has been answered is kept until the next text is attacked. So an answer never depends on which text was
attacked before, in which process.

TextAttack asks it like its own model wrappers: ``victim(texts)``, ``victim.get_grad(text)``,
``victim.tokenize(texts)``, with ``model``, ``tokenizer`` and ``max_length`` beside them. Nothing here needs TextAttack.

Shapes: ``N`` texts, ``C`` classes, ``L`` tokens of one text, ``E`` embedding size.
"""

import re
import time
from collections import OrderedDict
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.config.text_attack import DEFAULT_BATCH_SIZE
from fastadv.data.packing import PackedBatch
from fastadv.data.tokenize_texts import tokenize
from fastadv.errors import UserError
from fastadv.evaluation.vectors.accuracy import check_finite

DEFAULT_CACHE_SIZE = 2**15
"""answers kept: more than an attack on one text asks for"""

Text = Union[str, Tuple[str, str]]
"""a text, or the two texts of a pair"""

_PIECE_CHARACTERS = 2**20
"""tokenised at once: a fraction of a second, after which a time limit is noticed"""

_SUBWORD_MARK = re.compile("^(##)?Ġ?▁?")


class OutOfTime(BaseException):
    """An attack's time is over. Not an Exception, so that no ``except Exception`` on the way takes it for a mistake."""


class TimedVictim:
    """What attacks on text ask: it counts what it was asked, and answers no more once its time is over."""

    def __init__(self):
        self._deadline = float("inf")
        self.num_asked = 0
        """texts asked for since it was made"""
        self.num_run = 0
        """texts that a pass was run for, each once"""

    def begin(self, seconds: Optional[float] = None) -> None:
        """Forgets all answers: another text is attacked now.

        Args:
            seconds: from now on; a question after that raises `OutOfTime`. None: no limit.
        """
        self.forget()
        self._deadline = float("inf") if seconds is None else time.monotonic() + seconds

    def forget(self) -> None:
        """Forgets all answers."""
        raise NotImplementedError

    def check_time(self) -> None:
        """OutOfTime once the time that `begin` gave is over."""
        if time.monotonic() > self._deadline:
            raise OutOfTime


class TextVictim(TimedVictim):
    """Probabilities of a classifier's classes for texts or pairs of texts.

    Args:
        classifier: a `fastadv.encoder.classifier.text_classifier.Classifier`; it is only ever asked without dropout.
        batch_size: texts a pass.
        bias: (C,) added to the logits: the classifier with its decision moved, as a control.
        cache_size: answers kept at most.
        model_folder: where the classifier was loaded from, so that no recipe takes it for its judge.

    Raises:
        UserError: a bias of another size, or one that is not finite.
    """

    def __init__(
        self,
        classifier,
        batch_size: int = DEFAULT_BATCH_SIZE,
        bias: Optional[Sequence[float]] = None,
        cache_size: int = DEFAULT_CACHE_SIZE,
        model_folder: Optional[str] = None,
    ):
        super().__init__()
        self.model, self.batch_size, self.model_folder = classifier, batch_size, model_folder
        self.tokenizer, self.max_length = classifier.encoder.tokenizer, classifier.encoder.max_length
        self.names = classifier.label_map.names
        self._bias = None if bias is None else torch.as_tensor(np.asarray(bias, dtype=np.float64))
        if bias is not None and (self._bias.shape != (len(self.names),) or not torch.isfinite(self._bias).all()):
            raise UserError(f"bias {list(bias)!r}: expected {len(self.names)} finite numbers, one a class")
        self._cache_size = cache_size
        self._answers: "OrderedDict[Text, Tensor]" = OrderedDict()

    @property
    def device(self) -> torch.device:
        """Where the classifier computes; answers are on the CPU."""
        return self.model.encoder.device

    def forget(self) -> None:
        self._answers.clear()

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Probabilities (N, C) in float64 on the CPU, in the order of the texts.

        Raises:
            OutOfTime: the time that `begin` gave is over.
            UserError: logits with NaN or infinity.
        """
        texts = [text if isinstance(text, str) else tuple(text) for text in texts]
        self.num_asked += len(texts)
        new = list(dict.fromkeys(text for text in texts if text not in self._answers))
        found = dict(zip(new, self._logits(new))) if new else {}
        logits = torch.stack([found[text] if text in found else self._answers[text] for text in texts])
        self._answers.update(found)
        while len(self._answers) > self._cache_size:
            self._answers.popitem(last=False)
        # In float64 also a class that the model is sure of has room below 1, and every row sums to 1.
        logits = logits.double() if self._bias is None else logits.double() + self._bias
        return F.softmax(logits, dim=1)

    def _logits(self, texts: List[Text]) -> Tensor:
        """(N, C) of texts that all differ."""
        tokens, special, types = [], [], []
        for piece in _pieces(texts):
            self.check_time()
            for all_of, more in zip((tokens, special, types), self._tokens(piece)):
                all_of.extend(more)
        # What lies beyond the cut, or is spelt alike to the tokenizer, makes no other tokens.
        keys = [(tuple(ids), tuple(kinds)) for ids, kinds in zip(tokens, types)]
        row_of: Dict[tuple, int] = {}
        for row, key in enumerate(keys):
            row_of.setdefault(key, row)
        rows = sorted(row_of.values(), key=lambda row: -len(tokens[row]))
        place = {row: number for number, row in enumerate(rows)}
        self.num_run += len(rows)
        parts = []
        for at in range(0, len(rows), self.batch_size):
            self.check_time()
            chosen = rows[at : at + self.batch_size]
            batch = self._pack(*([values[row] for row in chosen] for values in (tokens, special, types)))
            parts.append(self.model.classify_batch(batch).float().cpu())
        logits = torch.cat(parts)
        check_finite(logits.numpy(), self.model_folder or "the classifier")
        return logits[[place[row_of[key]] for key in keys]]

    def _tokens(self, texts: Sequence[Text]) -> Tuple[List[List[int]], List[List[bool]], List[List[int]]]:
        pairs = [text for text in texts if not isinstance(text, str)]
        if pairs and len(pairs) < len(texts):
            raise UserError("texts and pairs of texts were asked for at once; expected one or the other")
        if pairs:
            return self.model.encoder.tokenize_pairs(*zip(*pairs))
        return tokenize(self.tokenizer, self.max_length, texts, prompt=self.model.encoder.prompt)

    def _pack(self, tokens, special, types) -> PackedBatch:
        encoder = self.model.encoder
        return PackedBatch.from_token_lists(
            tokens, special, token_type_lists=types, position_offset=encoder.position_offset
        ).to(encoder.device)

    def get_grad(self, text: Text) -> Dict[str, np.ndarray]:
        """``ids`` (1, L), and ``gradient`` (L, E) by word embeddings of the predicted class's cross-entropy."""
        tokens, special, types = self._tokens([text])
        batch = self._pack(tokens, special, types)
        words: List[Tensor] = []

        def cut(module, given, output: Tensor) -> Tensor:
            # A leaf in place of the rows: the gradient goes to it and to no parameter.
            words.append(output.detach().requires_grad_())
            return words[-1]

        encoder = self.model.encoder
        hook = encoder.hf.get_input_embeddings().register_forward_hook(cut)
        try:
            with torch.enable_grad():
                logits = self.model.logits(encoder.embed(batch, dropout=False), batch, dropout=False)
                if self._bias is not None:
                    logits = logits + self._bias.to(logits)
                loss = F.cross_entropy(logits, logits.argmax(dim=1))
                (gradient,) = torch.autograd.grad(loss, words[:1])
        finally:
            hook.remove()
        gradient = gradient.reshape(-1, gradient.shape[-1]).float().cpu().numpy()
        return {"ids": np.array(tokens), "gradient": gradient}

    def tokenize(self, texts: Sequence[Text], strip_prefix: bool = False) -> List[List[str]]:
        """The tokens that the model sees of each text, as strings.

        Args:
            strip_prefix: without the marks that tell a word's first piece from the others.
        """
        tokens = [self.tokenizer.convert_ids_to_tokens(self._tokens([text])[0][0]) for text in texts]
        if strip_prefix:
            return [[_SUBWORD_MARK.sub("", token) for token in of_text] for of_text in tokens]
        return tokens


def _pieces(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Runs of texts that hold `_PIECE_CHARACTERS` or, at its end, one text more: no clock is looked at inside one."""
    start, size = 0, 0
    for end, text in enumerate(texts, start=1):
        size += len(text) if isinstance(text, str) else sum(map(len, text))
        if size >= _PIECE_CHARACTERS or end == len(texts):
            yield texts[start:end]
            start, size = end, 0

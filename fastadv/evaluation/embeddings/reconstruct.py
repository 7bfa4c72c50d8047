"""Text-form adversarial examples from perturbed embeddings (RAR, section 4.5 and table 6).

k-PGD perturbs a text's embeddings; then every token that is not special becomes the word of the vocabulary that its
perturbed state looks like most:

* where the model was trained with RAR's reconstructor, the arg-max of that: Linear(D→E) → GELU → LayerNorm(E) → the
  tied word embeddings and a bias, on the last hidden states of X + δ;
* else the word v whose own embedding, as the layer under attack gives it in that token's place (same position and
  type), is nearest to (X + δ)_i. At small radii that is the word itself: words lie far apart.

Special tokens and placeholders such as ``[unused7]`` are never chosen. The ids are turned into text, and only what a
model says of that text, tokenised anew, counts: ids that no text has fool nobody.

Shapes: ``T`` packed tokens, ``E`` embedding size, ``D`` hidden size, ``V`` vocabulary.
"""

import re
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor

from fastadv.config.embedding_attack import DEFAULT_BATCH_SIZE, AttackSettings
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import Texts, search
from fastadv.evaluation.embeddings.search import Target, attacking
from fastadv.files.progress import Bar
from fastadv.objectives.classes.rar import Reconstructor

RECONSTRUCTOR_FILE = "reconstructor.safetensors"
"""beside an export's weights"""
_PLACEHOLDER = re.compile(r"\[unused\d+\]|<unused\d+>|madeupword\d+")

TextPair = Tuple[str, Optional[str]]
"""a text, and the second one of a pair"""


def load_reconstructor(folder: str | Path, encoder) -> Optional[Reconstructor]:
    """The one that lies beside an export of RAR; None where there is none.

    Raises:
        UserError: a file that holds something else, or does not fit the encoder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / RECONSTRUCTOR_FILE
    if not path.is_file():
        return None
    vocab_size, embedding_size = encoder.word_embeddings.shape
    reconstructor = Reconstructor(encoder.hidden_size, embedding_size, vocab_size).to(encoder.word_embeddings)
    shapes = {name: tuple(value.shape) for name, value in reconstructor.state_dict().items()}
    try:
        found = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if {name: tuple(value.shape) for name, value in found.items()} != shapes:
        named = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise UserError(f"{path} is no reconstructor of this model; expected {named}")
    reconstructor.load_state_dict(found)
    return reconstructor.requires_grad_(False)


def reconstruct(
    classifier,
    data: LabelledTexts,
    settings: AttackSettings,
    epsilon: float,
    reconstructor: Optional[Reconstructor] = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    progress: bool = False,
) -> List[TextPair]:
    """The text that each text of ``data`` becomes at radius ``epsilon``, in their order.

    Args:
        settings: of the search, whose first run from the text itself is taken; its radii have no say.

    Raises:
        UserError: a model that cannot say what a word is like in a token's place: it runs padded, is perturbed at the
            embedding layer's output, and has no reconstructor.
    """
    encoder = classifier.encoder
    if reconstructor is None and encoder.path != "packed" and encoder.perturb_at != "word":
        raise UserError(
            "the model runs padded and has no reconstructor, so its words cannot be told apart in the embedding "
            "layer's output; perturb_at word can"
        )
    texts = Texts(classifier, data, batch_size)
    words = _Words(encoder)
    found: List[Optional[TextPair]] = [None] * len(data)
    with (
        attacking(classifier),
        Bar(total=len(data), desc=f"reconstruct, epsilon {epsilon:g}", unit=" texts", disable=not progress) as bar,
    ):
        for rows, batch, labels in texts.batches(range(len(data))):
            target = Target(classifier, batch, labels, settings.perturb_special_tokens)
            delta = search(target, settings, epsilon, settings.step_sizes[0], 0, rows.tolist()).end.delta
            with torch.no_grad():
                points = (target.x + delta).to(target.x.dtype)
                if reconstructor is None:
                    ids = words.nearest(points, batch)
                else:
                    ids = words.most_likely(encoder.token_states(points, batch, dropout=False), reconstructor, batch)
            for row, text in zip(rows, words.texts_of(ids, batch), strict=True):
                found[row] = text if data.second is not None else (text[0], None)
            bar.update(len(rows))
    return found


def detokenized(classifier, data: LabelledTexts) -> List[TextPair]:
    """Every text as its own ids read: cut, and spelt as the tokenizer spells it. What nobody attacked."""
    texts, words = Texts(classifier, data), _Words(classifier.encoder)
    found = []
    for row in range(len(data)):
        batch = texts.pack([row])
        ((first, second),) = words.texts_of(batch.input_ids, batch)
        found.append((first, second if data.second is not None else None))
    return found


class _Words:
    """The vocabulary as an encoder sees it."""

    def __init__(self, encoder):
        self._encoder = encoder
        tokenizer = encoder.tokenizer
        special = {*tokenizer.all_special_ids}
        known = [i for i in range(min(encoder.vocab_size, len(tokenizer))) if i not in special]
        tokens = tokenizer.convert_ids_to_tokens(known)
        kept = [i for i, token in zip(known, tokens) if token is not None and not _PLACEHOLDER.fullmatch(token)]
        self.candidates = torch.tensor(kept, device=encoder.device)

    def nearest(self, points: Tensor, batch: PackedBatch) -> Tensor:
        """(T,) int64: the word nearest to each row of ``points`` (T, E) in its place; special tokens stay."""
        ids, places = batch.input_ids.clone(), torch.stack([batch.position_ids, batch.token_type_ids], dim=1)
        places[batch.is_special] = -1
        for position, token_type in torch.unique(places, dim=0).tolist():
            if position < 0:
                continue
            rows = ((places[:, 0] == position) & (places[:, 1] == token_type)).nonzero()[:, 0]
            table = self._table(position, token_type)
            # ‖p − w‖² less ‖p‖², which all words share.
            distances = table.square().sum(dim=1) - 2 * points[rows] @ table.T
            ids[rows] = self.candidates[distances.argmin(dim=1)]
        return ids

    def _table(self, position: int, token_type: int) -> Tensor:
        """(number of candidates, E): each word's row of X in one place."""
        count = len(self.candidates)

        def full(value: int) -> Tensor:
            return torch.full_like(self.candidates, value)

        batch = PackedBatch(
            input_ids=self.candidates,
            token_type_ids=full(token_type),
            position_ids=full(position),
            is_special=torch.zeros(count, dtype=torch.bool, device=self.candidates.device),
            cu_seqlens=torch.arange(count + 1, dtype=torch.int32, device=self.candidates.device),
            max_seqlen=1,
            sentence_ids=torch.arange(count, device=self.candidates.device),
        )
        return self._encoder.embed(batch, dropout=False)

    def most_likely(self, states: Tensor, reconstructor: Reconstructor, batch: PackedBatch) -> Tensor:
        """(T,) int64: the reconstructor's arg-max at each token; special tokens stay."""
        embeddings = self._encoder.hf.get_input_embeddings().weight
        logits = reconstructor.logits(states, embeddings)[:, self.candidates]
        return torch.where(batch.is_special, batch.input_ids, self.candidates[logits.argmax(dim=1)])

    def texts_of(self, ids: Tensor, batch: PackedBatch) -> List[Tuple[str, str]]:
        """First and second text of every sentence of ``ids`` (T,): what lies between special tokens; none is ''."""
        found, starts = [], batch.cu_seqlens.tolist()
        for begin, end in zip(starts, starts[1:]):
            parts: List[List[int]] = [[]]
            for token, is_special in zip(ids[begin:end].tolist(), batch.is_special[begin:end].tolist()):
                if not is_special:
                    parts[-1].append(token)
                elif parts[-1]:
                    parts.append([])
            spelt = [self._encoder.tokenizer.decode(part, clean_up_tokenization_spaces=True) for part in parts]
            found.append((spelt[0].strip(), spelt[1].strip() if len(spelt) > 1 else ""))
        return found


def joined(text: TextPair) -> str:
    """Both texts of a pair on one line."""
    return text[0] if text[1] is None else f"{text[0]} / {text[1]}"


def as_texts(data: LabelledTexts, texts: List[TextPair]) -> Dict[str, Optional[List[str]]]:
    """``texts`` as `Classifier.classify_texts` takes them."""
    return {
        "texts": [first for first, _ in texts],
        "pairs": None if data.second is None else [second or "" for _, second in texts],
    }

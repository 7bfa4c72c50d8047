"""The search over texts, transcribed from METHODS.md section 8 into numpy float64.

Rows of a batch are `Sentence`s; ``proposals[i]`` has K of them for row i, None in the place of one that is the sentence
itself. Views are vectors z, one a row. What is chosen takes no part in any derivative.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle import toy_encoder
from tests.oracle.sentences.contrastive import contrastive_mean, cosine, row_loss


@dataclass(frozen=True)
class TextOptions:
    text_positive: str = "instead"
    weight_text: float = 0.0
    weight_flip: float = 0.0
    flip_margin: float = 0.0
    weight_keep: float = 0.0
    choose: str = "worst"
    temperature: float = 0.05
    multi_positive: str = "sum"


@dataclass(frozen=True)
class TextMasks:
    """Dropout masks of the outer passes; None: no dropout. Comparing passes have none."""

    clean: object = None
    positive: object = None
    text: object = None
    flip: object = None


class TextSearch:
    """SimCSE with views of texts; ``original`` are the parameters before training."""

    def __init__(self, options, parameters, original=None):
        self.options, self.parameters, self.original = options, parameters, original

    def vectors(self, sentences, masks=None, parameters=None, has_head=True):
        """z of each sentence, or h."""
        parameters = self.parameters if parameters is None else parameters
        if not has_head:
            parameters = {name: value for name, value in parameters.items() if not name.startswith("head")}
        empty = [None] * len(sentences)
        embedding, inner = (empty, empty) if masks is None else (masks.embedding, masks.inner)
        xs = [toy_encoder.embed(parameters, s, m) for s, m in zip(sentences, embedding, strict=True)]
        return [toy_encoder.forward(parameters, x, m)[0] for x, m in zip(xs, inner, strict=True)]

    def proposal_loss(self, row, proposal, keys, ids):
        """The inner loss of one row at one of its proposals, the keys constant, no dropout."""
        (z,) = self.vectors([proposal])
        return row_loss(row, z, [keys], ids, self.options.temperature, "sum", True)

    def chosen(self, sentence, losses):
        """The number of the first proposal of the highest loss; None where there is no proposal."""
        present = [k for k, loss in enumerate(losses) if loss is not None]
        if not present:
            return None
        if self.options.choose == "random":
            return present[0] if present[0] == 0 else None
        return min(k for k in present if losses[k] == max(losses[j] for j in present))

    def worst(self, batch, proposals, keys):
        """For each row the number of its text view, or None: the sentence itself."""
        ids = [sentence.identity for sentence in batch]
        numbers = []
        for row, (sentence, drawn) in enumerate(zip(batch, proposals, strict=True)):
            losses = [None if text is None else self.proposal_loss(row, text, keys, ids) for text in drawn]
            numbers.append(self.chosen(sentence, losses))
        return numbers

    def nearest(self, queries, flips):
        """For each row the number of the flip nearest to z."""
        numbers = []
        for query, drawn in zip(queries, flips, strict=True):
            near = [None if text is None else cosine(self.vectors([text])[0], query) for text in drawn]
            present = [k for k, value in enumerate(near) if value is not None]
            numbers.append(min((k for k in present if near[k] == max(near[j] for j in present)), default=None))
        return numbers

    @staticmethod
    def texts(batch, drawn, numbers):
        return [s if k is None else texts[k] for s, texts, k in zip(batch, drawn, numbers, strict=True)]

    def search(self, batch, proposals, flips, masks):
        """(numbers of the text views, numbers of the flips)."""
        z = self.vectors(batch, masks.clean)
        keys = z if self.options.text_positive == "instead" else self.vectors(batch, masks.positive)
        flipped = self.nearest(z, flips) if self.options.weight_flip > 0 else [None] * len(batch)
        return self.worst(batch, proposals, keys), flipped

    def loss(self, batch, proposals, flips, numbers, masks, parameters=None):
        """The loss as a function of the parameters, the choice held constant."""
        options, (worst, nearest) = self.options, numbers
        ids = [sentence.identity for sentence in batch]
        z = self.vectors(batch, masks.clean, parameters)
        z_text = self.vectors(self.texts(batch, proposals, worst), masks.text, parameters)
        keys = z_text if options.text_positive == "instead" else self.vectors(batch, masks.positive, parameters)
        sets = [keys, z_text] if options.text_positive == "beside" else [keys]
        loss = contrastive_mean(z, sets, ids, options.temperature, options.multi_positive)
        if options.weight_text > 0:
            loss = loss + options.weight_text * contrastive_mean(z_text, [keys], ids, options.temperature)
        if options.weight_flip > 0:
            z_flip = self.vectors(self.texts(batch, flips, nearest), masks.flip, parameters)
            rows = [i for i in range(len(batch)) if worst[i] is not None and nearest[i] is not None]
            terms = [self.hinge(z[i], z_text[i], z_flip[i]) for i in rows]
            loss = loss + options.weight_flip * sum(terms) / max(1, len(rows))
        if options.weight_keep > 0:
            loss = loss + options.weight_keep * self.distance(batch, proposals, worst, masks, parameters)
        return loss

    def distance(self, batch, proposals, worst, masks, parameters):
        """From the vectors before training, of the sentences and of the text views that there are."""
        start = self.vectors(batch, None, self.original, has_head=False)
        h = self.vectors(batch, masks.clean, parameters, has_head=False)
        h_text = self.vectors(self.texts(batch, proposals, worst), masks.text, parameters, has_head=False)
        of_text = [1 - cosine(a, b) for a, b, k in zip(h_text, start, worst, strict=True) if k is not None]
        own = sum(1 - cosine(a, b) for a, b in zip(h, start, strict=True)) / len(batch)
        return own + sum(of_text) / max(1, len(of_text))

    def hinge(self, z, z_text, z_flip):
        gap = self.options.flip_margin + cosine(z, z_flip) - cosine(z, z_text)
        return gap if np.real(gap) > 0 else 0.0 * gap

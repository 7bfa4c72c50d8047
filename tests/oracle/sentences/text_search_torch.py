"""Drives the real `Step` with the search over texts on the toy encoder."""

from dataclasses import dataclass, replace

import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.config.text_search import TextSearchConfig
from fastadv.data.packing import PackedBatch
from fastadv.engine.step.step import Step
from fastadv.objectives.original import OriginalEncoder
from fastadv.objectives.sentences.simcse import SimCSE
from tests.oracle.sentences.text_search import TextMasks
from tests.oracle.toy_encoder import Masks
from tests.oracle.toy_encoder_torch import ToyEncoder


@dataclass(frozen=True)
class TextStep:
    loss: float
    grads: dict
    masks: TextMasks
    texts: dict
    """side → the identity of each row's chosen text"""
    is_present: dict
    num_graphs: int
    """passes of the encoder that kept a graph"""


def packed(sentences, is_present=None):
    batch = PackedBatch.from_token_lists(
        [s.tokens for s in sentences], [s.special for s in sentences], [s.identity for s in sentences]
    )
    return batch if is_present is None else replace(batch, is_present=torch.tensor(is_present))


def with_proposals(batch, sides):
    """The packed batch; ``sides`` has of each side K texts or Nones a row."""
    proposals = {}
    for side, drawn in sides.items():
        by_number = list(zip(*drawn, strict=True))
        filled = [[s if text is None else text for s, text in zip(batch, of_k)] for of_k in by_number]
        proposals[side] = [packed(f, [text is not None for text in of_k]) for f, of_k in zip(filled, by_number)]
    return replace(packed(batch), proposals=proposals)


def run_step(options, parameters, batch, sides, has_dropout, seed=0, original=None):
    torch.manual_seed(seed)
    names = ("text_positive", "weight_text", "weight_flip", "flip_margin", "weight_keep", "temperature")
    names = (*names, "multi_positive")
    objective = SimCSE(ToyEncoder.hidden_size, head="mlp", **{name: getattr(options, name) for name in names}).double()
    linear = objective.head[0]
    weights = {"weight": parameters["head_weight"], "bias": parameters["head_bias"]}
    linear.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    encoder = ToyEncoder(parameters, has_dropout)
    if original is not None:
        objective.original_vectors = OriginalEncoder(ToyEncoder(original, has_dropout))
    text = TextSearchConfig(edits=["typos"], choose=options.choose, precision="fp32")
    step = Step(encoder, objective, PerturbationConfig(), text=text).train()
    passes, encode = [], encoder.encode
    encoder.encode = lambda x, texts, dropout=None: _noted(passes, texts, encode(x, texts, dropout))
    loss = step(with_proposals(batch, sides))
    loss.backward()
    named = dict(encoder.named_parameters()) | {"head_weight": linear.weight, "head_bias": linear.bias}
    order = ["clean"] + ["positive"] * (options.text_positive != "instead") + ["text"]
    order += ["flip"] * (options.weight_flip > 0)
    outer = [texts for texts, has_graph in passes if has_graph]
    assert len(outer) == len(order)
    masks = {}
    if has_dropout:
        assert len(encoder.drawn) == 2 * len(order)
        for name, texts, embedding, inner in zip(order, outer, encoder.drawn[::2], encoder.drawn[1::2], strict=True):
            lengths = texts.lengths.tolist()
            masks[name] = Masks(*([part.numpy() for part in mask.split(lengths)] for mask in (embedding, inner)))
    chosen = {name: texts for name, texts in zip(order, outer, strict=True) if name in ("text", "flip")}
    return TextStep(
        float(loss.detach()),
        {name: parameter.grad.numpy().copy() for name, parameter in named.items()},
        TextMasks(**masks),
        {name: x.sentence_ids.tolist() for name, x in chosen.items()},
        {name: x.is_present.tolist() for name, x in chosen.items()},
        len(outer),
    )


def _noted(passes, texts, pooled):
    passes.append((texts, pooled.requires_grad))
    return pooled

"""The classification heads on h: one for first tokens, one for means.

On the first token's state it is made like that of the model's own ``...ForSequenceClassification`` in transformers, so
that an export opens with ``AutoModelForSequenceClassification``. To add a model type name its activation and where
transformers keeps the two linear maps, and add it to the test of exports.

transformers has no classifier of means. There the head is one linear map, for any model type, kept in a file of its own
beside the weights (`HEAD_FILE`).
"""

import copy
from typing import Dict, NamedTuple, Optional, Sequence, Union

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.sentence_files.read import ModuleFile, find_file
from fastadv.encoder.weights.source import ModelSource, quiet_transformers
from fastadv.errors import UserError


class _Layout(NamedTuple):
    activation: str
    """by transformers' name"""
    dense: str
    """the inner linear map in the state dict of the whole model"""
    out: str


_CLS_HEAD = ("classifier.dense", "classifier.out_proj")

LAYOUTS = {
    # model_type of a configuration
    "bert": _Layout("tanh", "bert.pooler.dense", "classifier"),
    "albert": _Layout("tanh", "albert.pooler", "classifier"),
    "roberta": _Layout("tanh", *_CLS_HEAD),
    "xlm-roberta": _Layout("tanh", *_CLS_HEAD),
    "camembert": _Layout("tanh", *_CLS_HEAD),
    "data2vec-text": _Layout("tanh", *_CLS_HEAD),
    "mpnet": _Layout("tanh", *_CLS_HEAD),
    "electra": _Layout("gelu", *_CLS_HEAD),
    "distilbert": _Layout("relu", "pre_classifier", "classifier"),
}


HEAD_FILE = "classification_head.safetensors"
"""out.weight (C, D) and out.bias (C,) of a `LinearHead`, in an export with mean pooling"""
MEAN_HEAD_NOTE = (
    f"its classes are a linear map of the mean vector, kept in `{HEAD_FILE}`. `fastadv.Classifier.from_pretrained` "
    "reads it; `AutoModelForSequenceClassification`, which has no classifier of means, would draw a head of its own"
)
"""of a model card"""


class ClassificationHead(nn.Module):
    """logits = out(activation(dense(h))), h (B, D) → (B, C).

    The dropout that transformers puts around ``dense`` in training is left out: what regularises is that of the
    encoder, whose masks inner steps can repeat.

    Args:
        hidden_size: D.
        num_classes: C.
        activation: by transformers' name.
    """

    def __init__(self, hidden_size: int, num_classes: int, activation: str = "tanh"):
        super().__init__()
        from transformers.activations import ACT2FN

        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACT2FN[activation]
        self.out = nn.Linear(hidden_size, num_classes)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.out(self.activation(self.dense(pooled)))


class LinearHead(nn.Module):
    """logits = out(h), h (B, D), a mean of token states, → (B, C). There is no dropout, as in `ClassificationHead`.

    Args:
        hidden_size: D.
        num_classes: C.
    """

    def __init__(self, hidden_size: int, num_classes: int):
        super().__init__()
        self.out = nn.Linear(hidden_size, num_classes)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.out(pooled)


Head = Union[ClassificationHead, LinearHead]

POOLINGS_WITH_HEAD = ("cls", "mean")


def make_head(pooling: str, hidden_size: int, num_classes: int, activation: str = "tanh") -> Head:
    """The module that reads vectors of one of `POOLINGS_WITH_HEAD`, its weights as torch draws them."""
    if pooling == "mean":
        return LinearHead(hidden_size, num_classes)
    return ClassificationHead(hidden_size, num_classes, activation)


def check_classifiable(config, pooling: str, name: str) -> None:
    """Refuses vectors that no head reads, and first tokens of a model type without a head for them.

    Raises:
        UserError: one line.
    """
    if pooling not in POOLINGS_WITH_HEAD:
        raise UserError(
            f"encoder.pooling = {pooling}: expected {' or '.join(POOLINGS_WITH_HEAD)}, whose vectors a classification "
            "head reads"
        )
    if pooling == "cls" and config.model_type not in LAYOUTS:
        raise UserError(
            f"model {name!r} is of type {config.model_type}, for which there is no classification head on the first "
            f"token; there is one for {', '.join(LAYOUTS)}, and for every type with encoder.pooling mean"
        )


def check_pooled(modules: Sequence[ModuleFile], name: str) -> None:
    """UserError where a model has modules between its pooling and its vector that a head would have to read past."""
    trained = [file.kind for file in modules if file.kind not in ("Normalize", "Dropout")]
    if trained:
        raise UserError(
            f"model {name!r} has {', '.join(trained)} after its pooling; a classification head reads pooled states"
        )


def classes_of(source: ModelSource, names: Optional[Sequence[str]] = None) -> LabelMap:
    """The classes of a saved classifier.

    Args:
        names: what they are called, in the order of their numbers; None: as the model says.

    Raises:
        UserError: see `LabelMap.from_config`.
    """
    try:
        return LabelMap.from_config(source.config, names)
    except UserError as error:
        raise UserError(f"model {source.name!r}: {error}") from error


def load_head(source: ModelSource, label_map: LabelMap, is_trained: bool = False, pooling: str = "cls") -> Head:
    """The head of ``source``'s model: what its files hold of it, the rest drawn as transformers does.

    The output map is drawn anew unless the model was trained for these very classes, in this order.

    Args:
        is_trained: refuse a model without a trained head for as many classes; what they are called is ``label_map``'s.
        pooling: of the vectors that it reads.

    Raises:
        UserError: no head of this model type, weights that cannot be read, or none of a head where it must be trained.
    """
    check_classifiable(source.config, pooling, source.name)
    if pooling == "mean":
        return _load_linear_head(source, label_map, is_trained)
    from transformers import AutoModelForSequenceClassification

    layout, config = LAYOUTS[source.config.model_type], labelled_config(source.config, label_map)
    try:
        with quiet_transformers():
            model, info = AutoModelForSequenceClassification.from_pretrained(
                source.location,
                config=config,
                subfolder=source.files.subfolder,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(f"model {source.name!r} cannot be loaded as a classifier: {first_line}") from error
    head = ClassificationHead(source.config.hidden_size, len(label_map), layout.activation)
    state = model.state_dict()
    is_known = is_trained or dict(source.config.id2label) == label_map.id2label
    # A name, or a name with both shapes, by the release of transformers.
    missing, mismatched = (
        {found if isinstance(found, str) else found[0] for found in info[kind]}
        for kind in ("missing_keys", "mismatched_keys")
    )
    absent = {*missing, *mismatched}
    lacks_head = any(key.startswith((layout.dense, layout.out)) for key in absent)
    if is_trained and any(key.startswith(layout.out) for key in mismatched):
        raise UserError(
            f"model {source.name!r}: its configuration has {len(label_map)} classes (num_labels, id2label), and the "
            "head in its weights another number"
        )
    if is_trained and lacks_head:
        raise _untrained(source)
    if not is_known:
        _draw(state[f"{layout.out}.weight"], state[f"{layout.out}.bias"], config)
    head.load_state_dict({name: state[key] for name, key in _keys(layout).items()})
    return head


def _untrained(source: ModelSource) -> UserError:
    return UserError(
        f"model {source.name!r} is no trained classifier; give an export of a supervised run, or a folder that "
        "AutoModelForSequenceClassification opens"
    )


def _load_linear_head(source: ModelSource, label_map: LabelMap, is_trained: bool) -> LinearHead:
    path = find_file(source.location, HEAD_FILE)
    is_known = path is not None and (is_trained or dict(source.config.id2label) == label_map.id2label)
    if not is_known:
        if is_trained:
            raise _untrained(source)
        return draw_head(source.config, label_map, "mean")
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(f"model {source.name!r}: {HEAD_FILE} cannot be read: {first_line}") from error
    head = LinearHead(source.config.hidden_size, len(label_map))
    expected, found = ({name: tuple(v.shape) for name, v in s.items()} for s in (head.state_dict(), state))
    if found != expected:
        raise UserError(f"model {source.name!r}: {HEAD_FILE} holds {found}, expected {expected}")
    head.load_state_dict(state)
    return head


def pooling_of_head(source: ModelSource) -> str:
    """What a saved classifier's head reads: mean where there is a `HEAD_FILE`, else cls.

    Raises:
        UserError: a head of means beside files that say another pooling, or beside weights with a head of their own.
    """
    if find_file(source.location, HEAD_FILE) is None:
        return "cls"
    own = [name for name in source.config.architectures or () if name.endswith("ForSequenceClassification")]
    if own:
        # Somebody went on with transformers and saved into an export of ours.
        raise UserError(
            f"model {source.name!r} holds the head of a {own[0]}, and another in {HEAD_FILE}; delete the file to use "
            "the first"
        )
    if source.files.pooling != "mean":
        said = source.files.pooling or source.files.unsupported or "nothing of a pooling"
        raise UserError(
            f"model {source.name!r}: {HEAD_FILE} reads mean vectors, and its sentence-transformers files say {said}"
        )
    return "mean"


def draw_head(config, label_map: LabelMap, pooling: str = "cls") -> Head:
    """A fresh head for a model of this configuration of transformers, drawn as transformers does."""
    layout = LAYOUTS.get(config.model_type)
    activation = "tanh" if layout is None else layout.activation
    head = make_head(pooling, config.hidden_size, len(label_map), activation)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            _draw(module.weight, module.bias, config)
    return head


def _draw(weight: Tensor, bias: Tensor, config) -> None:
    nn.init.normal_(weight, std=getattr(config, "initializer_range", 0.02))
    nn.init.zeros_(bias)


def classifier_state(
    config, encoder_state: Dict[str, Tensor], head: ClassificationHead, prefix: str
) -> Dict[str, Tensor]:
    """The state dict of transformers' classifier: that of the encoder behind ``prefix``, and the head's."""
    # A pooler that a caller's encoder may have serves no vector; in BERT's place for it stands the head's inner map.
    state = {f"{prefix}.{name}": value for name, value in encoder_state.items() if not name.startswith("pooler.")}
    of_head = head.state_dict()
    state.update({key: of_head[name] for name, key in _keys(LAYOUTS[config.model_type]).items()})
    return state


def labelled_config(config, label_map: LabelMap):
    """A copy of a configuration of transformers, with the classes in it."""
    config = copy.deepcopy(config)
    label_map.apply_to(config)
    config.problem_type = "single_label_classification"
    return config


def _keys(layout: _Layout) -> Dict[str, str]:
    """Name in `ClassificationHead` -> key in the state dict of transformers' model."""
    return {
        f"{name}.{part}": f"{path}.{part}"
        for name, path in (("dense", layout.dense), ("out", layout.out))
        for part in ("weight", "bias")
    }

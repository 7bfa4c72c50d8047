"""README.md of an export: its metadata as the Hub reads them, and what it says where training is not known."""

import json
from typing import Any, Mapping, Optional, Sequence

from huggingface_hub import ModelCardData

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.classifier.classification_head import MEAN_HEAD_NOTE

_MAX_CLASSES = 20
"""named in a card; ``config.json`` has all"""

_STATES = {
    "cls": "the last hidden state of the first token",
    "mean": "the mean of the last hidden states over all tokens, special tokens included",
    "first_last": "the mean over all tokens of the average of embedding output and last hidden state",
    "max": "the largest of the last hidden states of all tokens, number by number",
    "mean_sqrt_len": "the sum of the last hidden states over the square root of their number",
    "weightedmean": "the mean of the last hidden states, each weighted by its place from 1",
    "lasttoken": "the last hidden state of the last token",
}
"""pooling → what becomes a vector"""


def front_matter(
    pooling: str,
    label_map: Optional[LabelMap] = None,
    base: Optional[Mapping[str, Any]] = None,
    datasets: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> str:
    """The YAML block that a card begins with: which library opens the model, for which task, and where it comes from.

    Args:
        label_map: of a classifier; None for an encoder of vectors.
        base: `base_model`, `license` and `language` of the model it was made of (`fastadv.encoder.weights.card`).
        datasets: names on the Hub of what it was trained on.
        tags: besides those of its task.
    """
    library, task = "sentence-transformers", "sentence-similarity"
    of_task = ["sentence-transformers", "feature-extraction", "sentence-similarity"]
    if label_map is not None:
        # transformers has no classifier of means, and would draw a head of its own.
        library, task = "fastadv" if pooling == "mean" else "transformers", "text-classification"
        of_task = [task]
    data = ModelCardData(
        **(base or {}),
        library_name=library,
        pipeline_tag=task,
        tags=list(dict.fromkeys([*of_task, "fastadv", *tags])),
        datasets=list(dict.fromkeys(datasets)) or None,
    )
    return f"---\n{data}\n---"


def classes_in_words(label_map: LabelMap) -> str:
    """How many there are, and what the first of them are called."""
    names = [f"`{' '.join(name.replace('`', ' ').split())}`" for name in label_map.names[:_MAX_CLASSES]]
    rest = len(label_map) - len(names)
    return f"{len(label_map)} classes: {', '.join(names)}" + (f" and {rest} more" if rest else "")


def vectors_in_words(encoder) -> str:
    """How an encoder's vectors are made and compared, in a few sentences."""
    settings = encoder.settings
    how = "; beside it, ".join(_STATES[mode] for mode in encoder.pooling.split("+"))
    after = f", then {', '.join(settings['modules'])} as in `modules.json`" if settings["modules"] else ""
    prompt = f"Before every text stands the prompt {_quoted(encoder.prompt)}.\n" if encoder.prompt else ""
    length = "have length 1" if encoder.after.is_unit_length else "are not normalised"
    size = f"a vector of {encoder.vector_size} numbers"
    return (
        f"A text of at most {encoder.max_length} tokens becomes {size}: {how}{after}.\n"
        f"{prompt}Vectors are compared by {settings['similarity']} similarity and {length}."
    )


def _quoted(text: str) -> str:
    """On one line, and without a mark that would end the code of a card."""
    return f"`{json.dumps(text, ensure_ascii=False).replace('`', chr(39))}`"


def default_card(encoder, label_map: Optional[LabelMap] = None) -> str:
    """README.md of an export about whose training nothing was said; a classifier's where there are classes."""
    begin = front_matter(encoder.pooling, label_map, encoder.card)
    end = "Training data, configuration, commit and scores: not recorded with this export.\n"
    if label_map is None:
        return f"""{begin}
# A sentence encoder exported by fastadv

{vectors_in_words(encoder)}

```python
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer("this folder").encode(["A sentence."])
```

{end}"""
    note = f"\nIt is a classifier: {MEAN_HEAD_NOTE}.\n" if encoder.pooling == "mean" else ""
    prompt = f" Before every text stands the prompt {_quoted(encoder.prompt)}." if encoder.prompt else ""
    how = f"The classification head reads {_STATES[encoder.pooling]}.{prompt}"
    return f"""{begin}
# A text classifier exported by fastadv

Texts of at most {encoder.max_length} tokens, {classes_in_words(label_map)}. {how}

```python
from fastadv import Classifier
logits = Classifier.from_pretrained("this folder").classify_texts(["A text."])
```
{note}
{end}"""

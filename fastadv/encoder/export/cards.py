"""README.md of an export: its metadata as the Hub reads them, and what it says where training is not known."""

from typing import Optional

from huggingface_hub import ModelCardData

from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.classifier.classification_head import MEAN_HEAD_NOTE

_MAX_CLASSES = 20
"""named in a card; ``config.json`` has all"""


def front_matter(pooling: str, label_map: Optional[LabelMap] = None) -> str:
    """The YAML block that a card begins with: which library opens the model, and for which task.

    Args:
        label_map: of a classifier; None for an encoder of vectors.
    """
    library, task = "sentence-transformers", "sentence-similarity"
    if label_map is not None:
        # transformers has no classifier of means, and would draw a head of its own.
        library, task = "fastadv" if pooling == "mean" else "transformers", "text-classification"
    return f"---\n{ModelCardData(library_name=library, pipeline_tag=task)}\n---"


def classes_in_words(label_map: LabelMap) -> str:
    """How many there are, and what the first of them are called."""
    names = [f"`{' '.join(name.replace('`', ' ').split())}`" for name in label_map.names[:_MAX_CLASSES]]
    rest = len(label_map) - len(names)
    return f"{len(label_map)} classes: {', '.join(names)}" + (f" and {rest} more" if rest else "")


def default_card(encoder, label_map: Optional[LabelMap] = None) -> str:
    """README.md of an export about whose training nothing was said; a classifier's where there are classes."""
    how = {
        "cls": "the last hidden state of the first token",
        "mean": "the mean of the last hidden states over all tokens, special tokens included",
        "first_last": "the mean over all tokens of the average of embedding output and last hidden state",
    }[encoder.pooling]
    begin = front_matter(encoder.pooling, label_map)
    end = "Training data, configuration, commit and scores: not recorded with this export.\n"
    if label_map is None:
        return f"""{begin}
# A sentence encoder exported by fastadv

A text of at most {encoder.max_length} tokens becomes a vector of {encoder.hidden_size} numbers: {how}.
Vectors are compared by cosine similarity and are not normalised.

```python
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer("this folder").encode(["A sentence."])
```

{end}"""
    note = f"\nIt is a classifier: {MEAN_HEAD_NOTE}.\n" if encoder.pooling == "mean" else ""
    return f"""{begin}
# A text classifier exported by fastadv

Texts of at most {encoder.max_length} tokens, {classes_in_words(label_map)}. The classification head reads {how}.

```python
from fastadv import Classifier
logits = Classifier.from_pretrained("this folder").classify_texts(["A text."])
```
{note}
{end}"""

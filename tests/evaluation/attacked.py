"""Small classifiers to attack, and the texts they are attacked on."""

import csv

import torch
from torch import nn

from fastadv.cli.main import main
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.variants.word_sets import WordSets
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.encoder.classifier.text_classifier import Classifier

CLASSES = ("bad", "fair", "good", "great")
SETS = WordSets(
    {
        "film": ["movie", "story"],
        "dull": ["slow", "sad"],
        "funny": ["sharp", "sad"],
        "wonderful": ["great", "good"],
        "music": ["scene", "camera"],
        "plot": ["story", "scene"],
        "never": ["not"],
        "love": ["hate"],
    },
    {"good": ["bad"], "wonderful": ["terrible"], "love": ["hate"], "never": ["always"], "dull": ["sharp", "great"]},
)
TEXTS = [
    "the film was not very good .",
    "a wonderful story !",
    "it is dull",
    "the actor was great , but the plot was slow and the ending was almost terrible .",
    "never",
    "love this camera and this music .",
    "sad ending , bad music and a slow plot with a terrible actor in every scene",
    "one always love a funny scene",
    "the music is the story .",
    "dull dull dull !",
    "a sharp and funny movie but not great",
    "hate this",
]


def run(arguments, capture, status=0):
    """Runs a command that ends with ``status``, and gives what it printed."""
    assert main([str(argument) for argument in arguments]) == status
    return capture.readouterr()


def make_classifier(folder, dtype=torch.float64, seed=0, spread=1.0, **options):
    """The tiny encoder with a random head of four classes; ``spread`` is the scale of its logits."""
    encoder = Encoder.from_pretrained(str(folder), dtype=dtype, **options)
    torch.manual_seed(seed)
    head = ClassificationHead(encoder.hidden_size, len(CLASSES)).to(dtype)
    nn.init.normal_(head.out.weight, std=spread)
    classifier = Classifier(encoder, head, LabelMap(CLASSES)).eval()
    # A random head says nearly the same of all texts; less their mean, its logits tell them apart.
    mean = torch.as_tensor(classifier.classify_texts(TEXTS).mean(axis=0), dtype=dtype)
    with torch.no_grad():
        head.out.bias -= mean
    return classifier


def own_labels(classifier, texts=TEXTS):
    """The texts labelled as the classifier itself sees them, so that it is right everywhere without an attack."""
    labels = classifier.classify_texts(texts).argmax(axis=1).tolist()
    return LabelledTexts(LabelMap(CLASSES), list(texts), None, labels)


def write_table(path, data):
    """Labelled texts as a csv file with columns text and label."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(zip(data.first, (data.label_map.names[label] for label in data.labels)))
    return path


class Rounded(nn.Module):
    """A head whose input is rounded: its answers change with h, its gradient is 0 everywhere."""

    def __init__(self, head, grain):
        super().__init__()
        self.head, self.grain = head, grain

    def forward(self, pooled):
        return self.head((pooled / self.grain).round() * self.grain)


class Constant(nn.Module):
    """A head that always says the same, and sees nothing of h."""

    def __init__(self, logits):
        super().__init__()
        self.register_buffer("logits", torch.as_tensor(logits))

    def forward(self, pooled):
        return self.logits.to(pooled.dtype) + 0 * pooled[:, :1]


class Scaled(nn.Module):
    """A head with other logits of the same order: saturated where the scale is large."""

    def __init__(self, head, scale):
        super().__init__()
        self.head, self.scale = head, scale

    def forward(self, pooled):
        return self.head(pooled) * self.scale


def save_two_classifiers(folder, tiny_bert_dir):
    """Writes a/model and b/model, and texts.csv labelled by the first; gives the second."""
    for name, seed in (("a", 0), ("b", 3)):
        classifier = make_classifier(tiny_bert_dir, dtype=torch.float32, seed=seed)
        classifier.save_pretrained(folder / name / "model")
        if name == "a":
            write_table(folder / "texts.csv", own_labels(classifier))
    return classifier

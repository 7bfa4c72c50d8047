"""SAFER (Ye et al. 2020): training on randomly substituted texts alone.

| paper | here |
|---|---|
| S_x, sentences of synonyms | `data.word_sets` |
| a draw from S_x for every sentence | variant "fickle", redrawn every epoch (`fastadv/data/variants/substitution.py`) |

The certificate's vote over many draws at test time is not made: the exported classifier reads a text once (METHODS 4).
"""

from torch import Tensor

from fastadv.objectives.base import Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import Needs


class SAFER(ClassificationObjective):
    """L = CE(x_f), of the sentence itself where nothing in it could be replaced. No clean pass is made."""

    needs = Needs(labels=True, clean=False, variants=("fickle",))

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        # Of a missing text the variant's vector is that of the sentence.
        loss = self.cross_entropy(views.variants["fickle"].pooled, views)
        return loss, {"loss_fickle": loss.detach()}

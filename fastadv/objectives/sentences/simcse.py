"""SimCSE (Gao et al. 2021): two dropout masks of one sentence attract, all other sentences of the batch repel."""

from torch import Tensor

from fastadv.objectives.base import Views
from fastadv.objectives.sentences.contrastive import ContrastiveObjective


class SimCSE(ContrastiveObjective):
    """L = L_con(z, {z+}), no perturbation of embeddings is searched. Options are those of ContrastiveObjective."""

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.contrast(views.query, views.sentence_ids, *self.positive_sets(views))
        return self.with_text_terms(loss, {"loss_contrastive": loss.detach()}, views)

"""What the step is compared with, in plain torch on a padded Hugging Face model: SimCSE, the public structure, SCAL.

All take a batch as (B, L) ids and mask, take the first token's state through the
head, and compute the loss of `bench.info_nce.materialised` at temperature 0.05.
"""

from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.info_nce import materialised
from bench.steps.data import Sample


class SimCSE(nn.Module):
    """The contrastive loss of two dropout views (Gao et al. 2021), both in one pass of 2B.

    Args:
        hf: a padded encoder of transformers in train mode.
        head: (B, D) → (B, D).

    Attributes:
        num_passes: how often the encoder ran, each time on 2B sentences.
    """

    def __init__(self, hf: nn.Module, head: nn.Module):
        super().__init__()
        self.hf, self.head = hf, head
        self.num_passes = 0

    def forward(self, sample: Sample, embeddings: Optional[Tensor] = None) -> Tensor:
        """The loss, a scalar; ``embeddings`` (2B, L, E) take the place of the word embeddings."""
        self.num_passes += 1
        mask = sample.attention_mask.repeat(2, 1)
        given = {"input_ids": sample.input_ids.repeat(2, 1)} if embeddings is None else {"inputs_embeds": embeddings}
        states = self.hf(attention_mask=mask, **given).last_hidden_state
        return materialised(*self.head(states[:, 0]).chunk(2), "mean")


class PublicStructure(nn.Module):
    """The order of passes of RobustSentEmbed's public code, for its cost.

    Reproduced, from the methods page: padding to the full length; every inner iteration runs the encoder twice on both
    views (2B), once with a full backward into the parameters' ``grad`` that keeps the graph (token-level step), and
    once for the gradient by the sentence-level perturbation alone; N iterations give N - 1 sentence-level steps; the
    gradients that are left in the parameters are wiped; the outer step is that of SimCSE, for the shipped flags never
    encode the adversarial view. Perturbations are added to the word embeddings, padding included.

    Not reproduced: the mistakes that change what is learnt and not what it costs (views paired with neighbouring
    sentences, the normalised embedding in place of the gradient), the token table's unbounded growth, replaced token
    detection. Steps and norms are the method's, in plain torch.
    """

    def __init__(self, simcse: SimCSE, num_steps: int, alpha=1e-5, beta=1e-3, gamma=2e-2, rho=0.5, sigma=0.1):
        super().__init__()
        self.simcse, self.num_steps = simcse, num_steps
        self.alpha, self.beta, self.gamma, self.rho = alpha, beta, gamma, rho
        table = simcse.hf.get_input_embeddings().weight
        # A plain tensor: no parameter and no part of a state dict.
        self._table = [torch.empty_like(table, requires_grad=False).uniform_(-sigma, sigma) / table.shape[1] ** 0.5]

    def forward(self, sample: Sample) -> Tensor:
        """The outer loss; the search has been run, and no gradient is left in the parameters."""
        self._search(sample)
        self.simcse.zero_grad(set_to_none=True)
        return self.simcse(sample)

    def _search(self, sample: Sample) -> None:
        ids = sample.input_ids.repeat(2, 1)
        words = self.simcse.hf.get_input_embeddings()(ids)
        table = self._table[0]
        eta = table[ids]
        pgd = fgsm = torch.zeros_like(words)
        for step in range(self.num_steps):
            eta.requires_grad_()
            delta = (self.rho * pgd + (1 - self.rho) * fgsm).detach()
            self.simcse(sample, words + delta + eta).backward(retain_graph=True)
            eta = self._token_step(eta.detach(), eta.grad)
            delta.requires_grad_()
            (grad,) = torch.autograd.grad(self.simcse(sample, words + delta), delta)
            if step < self.num_steps - 1:
                scale = grad.abs().amax((1, 2), keepdim=True)
                pgd = pgd + self.alpha * grad / torch.where(scale > 0, scale, 1)
                fgsm = fgsm + self.beta * grad.sign()
        table[ids] = eta.to(table.dtype)

    def _token_step(self, eta: Tensor, grad: Tensor) -> Tensor:
        scale = grad.abs().amax(-1, keepdim=True)
        moved = eta + self.gamma * grad / torch.where(scale > 0, scale, 1)
        norms = moved.abs().amax(-1, keepdim=True)
        return moved * norms / norms.amax(1, keepdim=True)


class TextbookSCAL(nn.Module):
    """SCAL as it is usually written: FGM's gradient by a forward and a full backward of its own, then two outer views.

    The perturbation is added to the word embeddings, padding included.

    Args:
        classifier: (B, D) → (B, C).
        simcse: gives the padded encoder and the head.
    """

    def __init__(self, simcse: SimCSE, classifier: nn.Module, epsilon: float = 1.0, weight_contrastive: float = 0.5):
        super().__init__()
        self.simcse, self.classifier = simcse, classifier
        self.epsilon, self.weight_contrastive = epsilon, weight_contrastive

    def forward(self, sample: Sample) -> Tensor:
        """The outer loss; the attack has been made, and no gradient is left in the parameters."""
        labels = sample.packed.labels
        words = self.simcse.hf.get_input_embeddings()(sample.input_ids)
        delta = torch.zeros_like(words, requires_grad=True)
        cross_entropy(self.classifier(self._pooled(sample, words + delta)), labels).backward()
        lengths = delta.grad.flatten(1).norm(dim=1)[:, None, None]
        delta = self.epsilon * delta.grad / torch.where(lengths > 0, lengths, 1)
        self.zero_grad(set_to_none=True)
        words = self.simcse.hf.get_input_embeddings()(sample.input_ids)
        clean, attacked = self._pooled(sample, words), self._pooled(sample, words + delta)
        both = [cross_entropy(self.classifier(pooled), labels) for pooled in (clean, attacked)]
        contrast = materialised(self.simcse.head(clean), self.simcse.head(attacked), "mean")
        return sum(both) / 2 + self.weight_contrastive * contrast

    def _pooled(self, sample: Sample, words: Tensor) -> Tensor:
        return self.simcse.hf(inputs_embeds=words, attention_mask=sample.attention_mask).last_hidden_state[:, 0]

"""RAR (Reconstruction from Adversarial Representations): FreeLB, and the original words rebuilt from its last pass.

    u_t = LayerNorm(GELU(A b_t + a))  (E)      logits_t = V u_t + c  (V)      b_t: last hidden states of the last pass
    L_R = mean over the real tokens of the batch of CE(logits_t, w_t)      L = mean over passes of CE(x_adv) + w_r L_R

| paper | here |
|---|---|
| R_adv,tok | `views.adversarial_tokens` |
| the reconstructor (section 3.3) | `Reconstructor`, a BERT-like head of a masked language model |
| second feed-forward layer, shared with the embeddings | V above is the encoder's own word embeddings; c is new |
| w_r (eq. 7) | `weight_reconstruction` |

The prose puts LayerNorm and GELU before both layers. The order here is the one whose parameters are as many as the
paper's table 7 counts (D E + E of the first layer, 2 E of the norm, V of the bias: 128,688 for ALBERT-base). Every real
token is rebuilt, special ones too.
"""

from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastadv.config.bounds import NotNegative
from fastadv.errors import UserError
from fastadv.objectives.base import LossSizes, Views
from fastadv.objectives.classes.classification import ClassificationObjective
from fastadv.objectives.needs import AdversarialView, Needs

_LAYER_NORM_EPS = 1e-12
"""BERT's and ALBERT's"""
TOKENS_AT_A_TIME = 1024
"""whose logits (.., V) are alive together"""


class Reconstructor(nn.Module):
    """Token states (T, D) to the losses of their words.

    Args:
        hidden_size: D.
        embedding_size: E, the width of a word embedding.
        vocab_size: V.
    """

    def __init__(self, hidden_size: int, embedding_size: int, vocab_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, embedding_size)
        self.norm = nn.LayerNorm(embedding_size, eps=_LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def losses(self, states: Tensor, words: Tensor, word_embeddings: Tensor) -> Tensor:
        """(T,) cross-entropy of each word (T,) int64, in float32 at least.

        Args:
            word_embeddings: (V, E) of the encoder, which rebuild, too.
        """
        parts = zip(states.split(TOKENS_AT_A_TIME), words.split(TOKENS_AT_A_TIME), strict=True)
        # A parameter that ZeRO stage 3 has cut to pieces is whole while its layer runs, not when it runs once more.
        is_cut = hasattr(word_embeddings, "ds_id")
        if len(states) <= TOKENS_AT_A_TIME or is_cut or not torch.is_grad_enabled():
            return torch.cat([self._losses(part, of_part, word_embeddings) for part, of_part in parts])
        # T times V logits are larger than all else of a step; they are computed once more in the backward.
        arguments = {"use_reentrant": False, "preserve_rng_state": False}
        return torch.cat(
            [checkpoint(self._losses, part, of_part, word_embeddings, **arguments) for part, of_part in parts]
        )

    def logits(self, states: Tensor, word_embeddings: Tensor) -> Tensor:
        """(T, V) of states (T, D)."""
        inner = self.norm(F.gelu(self.dense(states.to(self.dense.weight.dtype))))
        return F.linear(inner, word_embeddings.to(inner.dtype), self.bias)

    def _losses(self, states: Tensor, words: Tensor, word_embeddings: Tensor) -> Tensor:
        logits = self.logits(states, word_embeddings)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, words, reduction="none")


class RAR(ClassificationObjective):
    """L = L_C + w_r * L_R on the last pass, RAR eq. 7, for `perturbation.method: freelb`.

    Args:
        hidden_size: D of the pooled vectors.
        classifier: h (B, D) → logits (B, C), given by the run.
        weight_reconstruction: w_r.
    """

    needs = Needs(
        labels=True,
        clean=False,
        adversarial=AdversarialView(tokens=True, methods=("freelb",), raised_term="loss_classification"),
    )

    def __init__(self, hidden_size: int, classifier, *, weight_reconstruction: NotNegative = 0.1):
        super().__init__(hidden_size, classifier)
        if weight_reconstruction < 0:
            raise UserError(
                f"objective_options.weight_reconstruction: {weight_reconstruction} given, must be 0 or more"
            )
        self.weight_reconstruction = weight_reconstruction
        self.reconstructor: Optional[Reconstructor] = None
        self._word_embeddings: Optional[Callable[[], Tensor]] = None

    def bind(self, encoder: nn.Module) -> None:
        vocab_size, embedding_size = encoder.word_embeddings.shape
        self.reconstructor = Reconstructor(self.hidden_size, embedding_size, vocab_size).to(encoder.word_embeddings)
        # A function, since a module kept here would register the encoder's parameters once more.
        self._word_embeddings = lambda: encoder.word_embeddings

    def loss_flops(self, sizes: LossSizes) -> dict[str, float]:
        forward = 2.0 * sizes.num_tokens * sizes.embedding_size * (sizes.hidden_size + sizes.vocab_size)
        # Above this many tokens logits are computed once more in the backward.
        times = 3 + (sizes.num_tokens > TOKENS_AT_A_TIME)
        return {**super().loss_flops(sizes), "reconstruction": times * forward}

    def heads(self) -> list[nn.Module]:
        # The reconstructor runs at tokens.
        return [self.classifier]

    def exported_beside(self) -> dict[str, nn.Module]:
        return {"reconstructor": self.reconstructor}

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.cross_entropy(views.adversarial_pooled, views)
        terms = {"loss_classification": loss.detach()}
        if views.last_pass == 0:
            return loss, terms
        words = views.batch.input_ids
        losses = self.reconstructor.losses(views.adversarial_tokens, words, self._word_embeddings())
        num_tokens = len(words) if views.tokens_a_rank is None else views.tokens_a_rank
        reconstruction = losses.sum() / num_tokens
        terms["loss_reconstruction"] = reconstruction.detach()
        return loss + views.last_pass * self.weight_reconstruction * reconstruction, terms

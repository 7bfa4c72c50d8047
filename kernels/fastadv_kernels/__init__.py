"""The operations of adversarial training on packed sentences, each defined by a plain-torch reference.

Packed: the tokens of B sentences laid end to end, (T, E), with ``cu_seqlens`` int32 (B + 1,).
"""

from .backend import BackendError, resolve, set_backend
from .direction import direction
from .dropout import dropout
from .eta_table import eta_table_read, eta_table_sums, eta_table_write, eta_table_write_mean
from .info_nce import info_nce
from .project import project
from .segment import row_norm, segment_norm
from .sentence_step import mix_chains, pair_step, sentence_step, sign_step
from .token_update import token_update

__all__ = [
    "BackendError",
    "direction",
    "dropout",
    "eta_table_read",
    "eta_table_sums",
    "eta_table_write",
    "eta_table_write_mean",
    "info_nce",
    "mix_chains",
    "pair_step",
    "project",
    "resolve",
    "row_norm",
    "segment_norm",
    "sentence_step",
    "set_backend",
    "sign_step",
    "token_update",
]

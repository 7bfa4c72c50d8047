"""torch.compile(fullgraph=True) traces every op, whichever form runs."""

import pytest
import torch

from fastadv_kernels import (
    direction,
    eta_table_read,
    eta_table_sums,
    eta_table_write_mean,
    info_nce,
    mix_chains,
    pair_step,
    project,
    row_norm,
    segment_norm,
    sentence_step,
    sign_step,
    token_update,
)

OFFSETS = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
WORDS = torch.tensor([7, 2, 7, 3, 2, 7, 0, 8, 2])

BY_NORM = {
    "segment_norm": lambda x, grad, norm: segment_norm(x, OFFSETS, norm),
    "row_norm": lambda x, grad, norm: row_norm(x, norm),
    "direction": lambda x, grad, norm: direction(grad, norm, OFFSETS),
    "project": lambda x, grad, norm: project(x, 0.1, norm, OFFSETS),
    "sentence_step": lambda x, grad, norm: sentence_step(x, grad, OFFSETS, 0.1, 0.2, norm),
    "sign_step": lambda x, grad, norm: sign_step(x, grad, OFFSETS, 0.1, 0.2, norm),
    "pair_step": lambda x, grad, norm: torch.cat(pair_step(x, 2 * x, grad, OFFSETS, 0.1, 0.3, 0.2, norm)),
    "token_update": lambda x, grad, norm: token_update(x, grad, OFFSETS, 0.1, 0.2, norm),
}


def written(x, grad, norm):
    table = grad.clone()
    eta_table_write_mean(table, WORDS, x)
    return table


OTHERS = {
    "eta_table_write_mean": written,
    "mix_chains": lambda x, grad, norm: mix_chains(x, grad, 0.3),
    "eta_table_read": lambda x, grad, norm: eta_table_read(x, WORDS),
    "eta_table_sums": lambda x, grad, norm: eta_table_sums(x, WORDS)[1],
    "info_nce": lambda x, grad, norm: info_nce(x, torch.stack([x + 0.1, grad]), temperature=0.1),
}
CASES = [(op, norm) for op in BY_NORM for norm in ("linf", "l2", "l1")] + [(op, "l2") for op in OTHERS]


@pytest.mark.parametrize(("op", "norm"), CASES)
def test_the_whole_graph_is_traced(op, norm):
    function = {**BY_NORM, **OTHERS}[op]
    x, grad = torch.randn(9, 5), torch.randn(9, 5)
    torch._dynamo.reset()
    # aot_eager stops before code generation: tracing is the question, and a C++ compiler takes its time.
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, grad, norm), function(x, grad, norm))

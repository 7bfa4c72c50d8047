"""Whether what several ranks found is what one process found: loss, gradients and states, by name."""

import torch

from tests.conftest import write_tiny_bert

STATES = ("loss", "eta_table", "adaptive_reuse", "average_model", "carl_banks", "carl_log_z")
"""beginnings of names that are no gradients"""


def assert_near(found, expected, share, where):
    """Every tensor within ``share`` of its norm; whole numbers, and what has a NaN, equal.

    An attention key's bias adds the same to all logits of a query, so its gradient is 0 and what is computed is
    rounding: such a tensor is held to the share of the largest gradient's norm.
    """
    assert found.keys() == expected.keys()
    floating = {name: value for name, value in expected.items() if value.is_floating_point()}
    largest = max(value.norm() for name, value in floating.items() if not name.startswith(STATES))
    for name, value in expected.items():
        if name not in floating or value.isnan().any():
            assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), (where, name)
            continue
        norm = largest if "key.bias" in name else value.norm()
        assert (found[name] - value).norm() <= share * norm, (where, name)


def make_encoder_folder(tmp_path_factory):
    """An encoder whose float32 gradients are within 5e-7 of its float64 ones; the usual tiny one's are within 1e-6."""
    return str(write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert", initializer_range=0.07))

"""One step on 1, 2 and 4 ranks at every ZeRO stage is the step of one process on the global batch."""

import pytest
import torch

from tests.conftest import write_tiny_bert
from tests.ranks.mutants import MUTANTS
from tests.ranks.start import run_ranks
from tests.ranks.steps import BATCHES, DOUBLE, SENTENCES, has_stage, make_step, plain, same_tokens_replaced, signs


def of_one_process(folder, case, num_rows, recorded, dtype=torch.float32):
    """Loss, gradients and table on the whole batch, in plain torch; signs of sign steps go to ``recorded``."""
    step = make_step(folder, case, dtype)
    with same_tokens_replaced(), signs(recorded):
        loss = step(step.encoder.pack(SENTENCES[:num_rows]))
    loss.backward()
    step.commit()
    return {"loss": loss.detach(), **{n: p.grad for n, p in step.named_parameters()}, **step.extra_state_dict()}


def assert_near(found, expected, share, where):
    """Every tensor within ``share`` of its norm.

    An attention key's bias adds the same to all logits of a query, so its gradient is 0 and what is computed is
    rounding: such a tensor is held to the share of the largest gradient's norm.
    """
    assert found.keys() == expected.keys()
    states = "loss", "eta_table", "adaptive_reuse"
    largest = max(value.norm() for name, value in expected.items() if name not in states)
    for name, value in expected.items():
        if not value.is_floating_point():
            assert torch.equal(found[name], value), (where, name)
            continue
        norm = largest if "key.bias" in name else value.norm()
        assert (found[name] - value).norm() <= share * norm, (where, name)


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """An encoder whose float32 gradients are within 5e-7 of its float64 ones; the usual tiny one's are within 1e-6."""
    return str(write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert", initializer_range=0.07))


@pytest.fixture(scope="module")
def expected(encoder_folder):
    torch.set_num_threads(1)
    recorded = []
    single, double = {}, {}
    for case, num_rows in BATCHES:
        signs_of = recorded if case == "signs" else []
        single[case, num_rows] = of_one_process(encoder_folder, plain(case), num_rows, signs_of)
    for case, num_rows in DOUBLE:
        double[case, num_rows] = of_one_process(encoder_folder, plain(case), num_rows, [], torch.float64)
    return recorded, single, double


@pytest.fixture(scope="module", params=[1, 2, 4])
def ranks(request, expected, encoder_folder, tmp_path_factory):
    """What so many ranks found; one spawn for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(expected[0], folder / "signs.pt")
    files = str(folder / "signs.pt"), str(folder / "found.pt")
    run_ranks(request.param, "step_worker.py", encoder_folder, *files)
    return request.param, torch.load(folder / "found.pt", weights_only=True)


def test_deepspeed_at_every_stage(ranks, expected):
    num_ranks, found = ranks
    for stage in range(4):
        for case, num_rows in BATCHES:
            if not has_stage(case, stage):
                continue
            key = f"{case}, stage {stage}, {num_rows} rows"
            assert_near(found["deepspeed"][key], expected[1][case, num_rows], 1e-6, f"{key}, {num_ranks} ranks")


def test_plain_torch_in_float64_with_sign_steps(ranks, expected):
    num_ranks, found = ranks
    for case, num_rows in DOUBLE:
        key = f"{case}, {num_rows} rows"
        assert_near(found["float64"][key], expected[2][case, num_rows], 1e-10, f"{key}, {num_ranks} ranks")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_shows(ranks, expected, name):
    num_ranks, found = ranks
    right = expected[2][MUTANTS[name][1], 7]
    # Of the tensor it shows in most; in float64 rounding is below 1e-10.
    furthest = max((found["mutants"][name][key] - value).norm() / (value.norm() + 1e-6) for key, value in right.items())
    assert (furthest > 1e-3) == (num_ranks > 1)


def test_the_inner_loop_sends_nothing(ranks):
    num_ranks, found = ranks
    for stage in range(4):
        first, second, planted = found["collectives"]["pgd", stage]
        assert stage == 3 or first["inside"] == []
        assert second["inside"] == [], f"stage {stage}, {num_ranks} ranks"
        # The counter sees what is there to see.
        assert planted["inside"] == ["all_reduce"] * 2
        assert num_ranks == 1 or len(second["outside"]) >= 3


def test_pieces_send_what_the_whole_sends(ranks):
    """Keys are gathered once and gradients reduced once a step, however many pieces there are."""
    num_ranks, found = ranks
    for stage in range(4):
        (_, whole, _), (_, pieces, _) = (found["collectives"][case, stage] for case in ("pgd", "pgd, in pieces"))
        assert pieces["inside"] == []
        assert sorted(pieces["outside"]) == sorted(whole["outside"]), f"stage {stage}, {num_ranks} ranks"

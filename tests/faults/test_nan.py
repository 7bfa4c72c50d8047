"""A NaN in one sentence of one batch: a line that names the step, status 1, and a run that can be gone on from."""

import pytest

from tests.faults.runs import assert_equal_runs, resumed_at, whole_checkpoints

PLANTED = {"objective": "tests.faults.objectives:Planted"}


@pytest.fixture(scope="module")
def untouched_at(server, write_config_in, tmp_path_factory):
    """``untouched_at(name, options)``: a run without the NaN, made once."""
    folder = tmp_path_factory.mktemp("untouched")

    def run(name, options):
        if not (folder / name).exists():
            assert server.run(["--config", write_config_in(folder, name, **options)]).status == 0
        return folder / name

    return run


# Stage by stage another part of the run finds the NaN.
@pytest.mark.parametrize("where", ["inner", "loss"])
@pytest.mark.parametrize("stage, precision", [(0, "fp32"), (1, "bf16"), (3, "fp32")])
def test_a_nan_in_one_sentence(server, write_config, untouched_at, tmp_path, where, stage, precision):
    options = {**PLANTED, "engine.zero_stage": stage, "engine.precision": precision}
    config = write_config("run", **options)
    fault = {"FAULT_BATCH": "4", "FAULT_ROW": "2", "FAULT_IN": where}
    ended = server.run(["--config", config], env=fault)
    assert ended.status == 1 and "Traceback" not in ended.err, ended.err
    assert len(ended.said) == 1 and ended.said[0].startswith("fastadv: step 5: "), ended.err
    assert whole_checkpoints(tmp_path / "run") == [2, 4]
    ended = server.run(["--config", config])
    assert ended.status == 0 and resumed_at(ended.err) == 4, ended.err
    assert_equal_runs(tmp_path / "run", untouched_at(f"{stage}-{precision}", options))

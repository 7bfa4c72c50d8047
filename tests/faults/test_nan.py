"""A NaN in one sentence of one batch: a line that names the step, status 1, and a run that can be gone on from."""

import pytest

from tests.faults.runs import assert_equal_runs, resumed_at, whole_checkpoints

PLANTED = {"objective": "tests.faults.objectives:Planted"}


@pytest.mark.parametrize("stage, precision", [(0, "fp32"), (1, "bf16"), (2, "fp32"), (3, "fp32")])
@pytest.mark.parametrize("where", ["inner", "loss"])
def test_a_nan_in_one_sentence(server, write_config, tmp_path, where, stage, precision):
    options = {**PLANTED, "engine.zero_stage": stage, "engine.precision": precision}
    config = write_config("run", **options)
    fault = {"FAULT_BATCH": "4", "FAULT_ROW": "2", "FAULT_IN": where}
    ended = server.run(["--config", config], env=fault)
    assert ended.status == 1 and "Traceback" not in ended.err, ended.err
    assert len(ended.said) == 1 and ended.said[0].startswith("fastadv: step 5: "), ended.err
    assert whole_checkpoints(tmp_path / "run") == [2, 4]
    # Without the NaN the run is the one that never had it.
    assert server.run(["--config", write_config("untouched", **options)]).status == 0
    ended = server.run(["--config", config])
    assert ended.status == 0 and resumed_at(ended.err) == 4, ended.err
    assert_equal_runs(tmp_path / "run", tmp_path / "untouched")

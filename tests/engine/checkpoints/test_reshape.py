"""A checkpoint made one of another number of processes: not a bit of it changes, and the run goes on."""

import json
import resource

import pytest
import torch
from safetensors.torch import load_file

from fastadv.cli.main import main
from fastadv.config.schema import to_yaml
from fastadv.engine.checkpoints.checkpoint import load_plain
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, fault_of, newest_checkpoint
from fastadv.errors import UserError
from tests.quick_trainer import Trainer
from tests.ranks.workers.reshape_worker import config_of, go_on, start
from tests.ranks.workers.start import run_ranks
from tests.small_runs import lines_of

pytestmark = pytest.mark.several_processes

# Where the ways of one process and of two part: no optimizer pieces, pieces of groups, pieces of parameters.
STAGES = ((0, "fp32"), (1, "bf16"), (2, "fp32"), (3, "fp32"), (3, "bf16"))
FROM_TWO = [(f"from-two-stage-{stage}-{precision}", str(stage), precision) for stage, precision in STAGES]
FROM_ONE = [(f"from-one-stage-{stage}-{precision}", str(stage), precision) for stage, precision in STAGES]
WHOLE = [(f"whole-stage-{stage}-{precision}", str(stage), precision) for stage, precision in STAGES]


def flat(runs):
    return [word for run in runs for word in run]


@pytest.fixture(scope="module")
def folder(make_config_in, tmp_path_factory):
    """All runs: stopped on one number of processes, reshaped by the command, finished on the other."""
    folder = tmp_path_factory.mktemp("runs")
    # Without dropout, random starts and sign steps the numbers of a step do not depend on how many compute it but by
    # rounding; a large eps keeps Adam from making a whole step of a gradient that is rounding alone.
    options = {
        "encoder.dropout": 0.0,
        "perturbation.norm": "l2",
        "perturbation.rho": 1.0,
        "perturbation.sigma": 0.0,
        "optimizer.eps": 1e-3,
        "train.max_steps": 3,
        "objective": "tests.ranks.cases.objectives:OddlySized",
    }
    path = str(folder / "config.yaml")
    (folder / "config.yaml").write_text(to_yaml(make_config_in(folder, **options)), encoding="utf-8")
    torch.set_num_threads(1)
    run_ranks(2, "reshape_worker.py", path, "start", *flat(FROM_TWO))
    for run in FROM_ONE:
        start(path, *run)
    for runs, num_ranks in ((FROM_TWO, 1), (FROM_ONE, 2)):
        for name, *_ in runs:
            assert main(["reshape-checkpoint", str(folder / name), "--num_ranks", str(num_ranks)]) == 0
    for run in FROM_TWO:
        go_on(path, *run)
    for run in WHOLE:
        Trainer(config_of(path, *run)).fit()
    run_ranks(2, "reshape_worker.py", path, "go-on", *flat(FROM_ONE))
    return folder


def assert_same(saved, resumed):
    assert saved.keys() == resumed.keys()
    assert any("exp_avg_sq" in name for name in saved) and saved["eta_table"].any()
    assert [name for name in saved if not torch.equal(saved[name], resumed[name])] == []


def losses(run_folder):
    lines = lines_of(run_folder)
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("name, stage, precision", FROM_TWO + FROM_ONE, ids=lambda value: value)
def test_weights_moments_schedule_and_table_keep_every_bit(folder, name, stage, precision):
    assert_same(load_file(folder / f"{name}-saved.safetensors"), load_file(folder / f"{name}-resumed.safetensors"))


@pytest.mark.parametrize("name, stage, precision", FROM_TWO + FROM_ONE, ids=lambda value: value)
def test_training_goes_on_as_if_never_stopped(folder, name, stage, precision):
    """In float32, up to the order of sums. In bfloat16 the losses show that nothing was lost."""
    whole, found = losses(folder / f"whole-stage-{stage}-{precision}"), losses(folder / name)
    assert len(set(whole)) == 3, "steps with equal losses would hide a lost position"
    assert found == pytest.approx(whole, rel=1e-5 if precision == "fp32" else 2e-2)


def test_every_process_draws_its_own_numbers(folder):
    drawn = [load_file(folder / f"{FROM_ONE[0][0]}-resumed-generator{rank}.safetensors") for rank in range(2)]
    assert not torch.equal(drawn[0]["generator"], drawn[1]["generator"])


@pytest.fixture
def stopped(make_config, stop_after):
    return Trainer(make_config(), [stop_after(2)]).fit()


def test_the_command_says_what_it_does_and_keeps_the_older_checkpoint(make_config, stop_after, capsys):
    folder = Trainer(make_config(**{"train.save_every": 1}), [stop_after(2)]).fit()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["reshape-checkpoint", str(folder), "--num_ranks", "3", "--dry_run"]) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert main(["reshape-checkpoint", str(folder), "--num_ranks", "3"]) == 0
    planned, done = capsys.readouterr().out.splitlines()[-2:]
    assert planned == f"would make {folder}/checkpoints/step-2, of 1 processes, one of 3"
    assert done.startswith(f"{folder}/checkpoints/step-2: the same command on 3 processes")
    assert [path.name for path in checkpoint_folders(folder)] == ["step-1", "step-2"]
    newest = newest_checkpoint(folder)
    assert json.loads((newest / "trainer_state.json").read_text())["identity"]["world_size"] == 3
    generators = [load_file(path) for path in sorted(newest.glob("generators-rank*"))]
    assert len({int(state["seed"]) for state in generators}) == 3
    # Once more, it is that already; and back, it has what it had but for the generators.
    assert main(["reshape-checkpoint", str(folder), "--num_ranks", "3"]) == 0
    assert main(["reshape-checkpoint", str(folder), "--num_ranks", "1"]) == 0
    assert (newest / "extra_state.safetensors").read_bytes() == before[newest / "extra_state.safetensors"]


def equal(one, other):
    """Of nested containers of tensors and numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if torch.is_tensor(one):
        return torch.equal(one, other)
    return vars(one) == vars(other) if hasattr(one, "cur_scale") else one == other


@pytest.mark.parametrize("stage, precision", [(0, "fp32"), (2, "bf16"), (3, "fp32"), (3, "bf16")], ids=str)
def test_there_and_back_over_odd_numbers_gives_the_same_files(make_config, stop_after, stage, precision):
    """What five processes hold is mostly filling; none of it stays."""
    options = {"engine.zero_stage": stage, "engine.precision": precision, "encoder.num_frozen_layers": 1}
    config = make_config(**options, objective="tests.ranks.cases.objectives:OddlySized")
    folder = Trainer(config, [stop_after(2)]).fit()
    engine = newest_checkpoint(folder) / "engine"
    before = {path.name: load_plain(str(path)) for path in engine.iterdir()}
    for num_ranks in (3, 5, 2, 1):
        assert main(["reshape-checkpoint", str(folder), "--num_ranks", str(num_ranks)]) == 0
        assert len(list(engine.iterdir())) == (1 if stage == 0 else num_ranks + (1 if stage < 3 else num_ranks))
    after = {path.name: load_plain(str(path)) for path in engine.iterdir()}
    for name, state in before.items():
        # Where each parameter lies, which DeepSpeed writes down for its converter and reads nowhere else.
        state.get("optimizer_state_dict", {}).pop("param_slice_mappings", None)
        assert equal(state, after[name]), name


def test_a_full_disk_leaves_the_checkpoint_as_it_was(stopped, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        status = main(["reshape-checkpoint", str(stopped), "--num_ranks", "2"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    err = capsys.readouterr().err.splitlines()[-1]
    assert status == 1 and err.startswith("fastadv: no checkpoint written: ") and "File too large" in err
    assert [path.name for path in (stopped / "checkpoints").iterdir()] == ["step-2"]
    assert fault_of(newest_checkpoint(stopped)) is None


def test_another_number_of_processes_is_refused_without_the_command_and_names_it(stopped, make_config):
    assert main(["reshape-checkpoint", str(stopped), "--num_ranks", "2"]) == 0
    with pytest.raises(UserError) as caught:
        Trainer(make_config()).fit()
    said = str(caught.value)
    assert "the number of processes is 1" in said and "was made with 2" in said and "\n" not in said
    assert f"`fastadv reshape-checkpoint {stopped} --num_ranks 1`" in said
    assert main(["reshape-checkpoint", str(stopped), "--num_ranks", "1"]) == 0
    trainer = Trainer(make_config())
    trainer.fit()
    assert trainer.is_finished


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--num_ranks", "9"], "expected at most 8, the run's train.batch_size"),
        (["--num_ranks", "0"], "expected a whole number of at least 1"),
        ([], "num_ranks"),
    ],
    ids=str,
)
def test_mistakes_are_one_line_and_change_nothing(stopped, arguments, said, capsys):
    assert main(["reshape-checkpoint", str(stopped), *arguments]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("fastadv: ") and said in err
    assert fault_of(newest_checkpoint(stopped)) is None


def test_a_folder_without_a_checkpoint_is_refused(tmp_path, capsys):
    assert main(["reshape-checkpoint", str(tmp_path / "nowhere"), "--num_ranks", "2"]) == 2
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / name).touch()
    assert main(["reshape-checkpoint", str(tmp_path), "--num_ranks", "2"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "is no run folder" in first and "holds no checkpoint" in second


def test_a_damaged_checkpoint_is_not_reshaped(stopped, capsys):
    path = newest_checkpoint(stopped) / "engine" / "mp_rank_00_model_states.pt"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["reshape-checkpoint", str(stopped), "--num_ranks", "2"]) == 2
    assert "no checkpoint is whole: step-2" in capsys.readouterr().err


def test_it_unpickles_nothing_but_tensors(stopped, monkeypatch):
    safely, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **how: (safely.append(how["weights_only"]), load(*a, **how))[1])
    assert main(["reshape-checkpoint", str(stopped), "--num_ranks", "2"]) == 0
    assert safely == [True]

"""What a run writes down: means, lines that a resumed run writes again, and a line or a bar on the terminal."""

import io
import json

import pytest
import torch

from fastadv.engine.monitor.metrics import MetricsLog, Progress, StepMeans


def test_means_are_over_the_steps_since_the_last_take():
    means = StepMeans()
    for loss in (1.0, 2.0, 6.0):
        means.add({"loss": torch.tensor(loss), "grad_norm": 2 * loss})
    means.add({"num_nonfinite_sentences": torch.tensor(4)})
    assert means.take() == {"loss": 3.0, "grad_norm": 6.0, "num_nonfinite_sentences": 4.0}
    assert means.take() == {}


def test_lines_are_whole_json_at_once(tmp_path):
    log = MetricsLog(tmp_path, first_step=1)
    log.write(1, {"loss": 0.5, "epoch": 0})
    log.write(2, {"loss": float("nan"), "epoch": 0})
    # Before the log is closed: a run that is killed leaves whole lines.
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"step": 1, "loss": 0.5, "epoch": 0},
        {"step": 2, "loss": None, "epoch": 0},
    ]
    log.close()


def test_a_resumed_log_goes_on_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "dev/score": 3}\n{"step": 3}\n{"step": 4, "lo')
    log = MetricsLog(tmp_path, first_step=3)
    log.write(3, {"loss": 1.0})
    log.close()
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [1, 2, 2, 3]


def test_events_hold_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, first_step=1)
    for step in (1, 2):
        log.write(step, {"loss": 0.5 * step, "dev/score": 80.0 + step})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 0.5), (2, 1.0)]
    assert [(e.step, e.value) for e in events.Scalars("dev/score")] == [(1, 81.0), (2, 82.0)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_progress(stream, total, first_step=0, **options):
    progress = Progress(total, first_step, stream=stream, **options)
    for step in range(first_step + 1, total + 1):
        progress.count(8)
        progress.advance({"loss": 1 / step, "inner_gain": float(step)} if step % 2 == 0 else {})
    progress.say("done")
    progress.close()
    return stream.getvalue()


def test_a_file_gets_a_line_every_tenth():
    lines = run_progress(io.StringIO(), 200).splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["1/200", *(f"{step}/200" for step in range(20, 201, 20))]
    assert "loss 0.05 · gain 20" in lines[1] and "sentences/s" in lines[1] and lines[1].endswith(" left")
    assert lines[-1] == "done"
    resumed = run_progress(io.StringIO(), 200, first_step=90).splitlines()
    assert [line.split()[1] for line in resumed[:3]] == ["91/200", "100/200", "120/200"]


def test_a_terminal_gets_a_bar():
    text = run_progress(Terminal(), 40)
    assert "40/40" in text and "loss=0.025" in text and "gain=40" in text and "sent/s=" in text
    assert "step 4/40" not in text


def test_other_ranks_are_silent():
    assert run_progress(io.StringIO(), 20, is_shown=False) == ""
    assert run_progress(Terminal(), 20, is_shown=False) == ""

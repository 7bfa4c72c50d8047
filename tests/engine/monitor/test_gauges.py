"""What a line of metrics.jsonl says of rates, padding, memory, time and utilisation is what can be counted by hand."""

import sys
import types
from functools import partial

import pytest
import torch

from fastadv.data.batching import BatchOrder
from fastadv.encoder import Encoder
from fastadv.engine.callbacks import Callback
from fastadv.engine.monitor import gauges
from fastadv.engine.step.search_record import norm_sums
from fastadv.files.clock import Clock
from tests.quick_trainer import Trainer
from tests.small_runs import SENTENCES, lines_of

PHASES = {"data", "forward", "search", "adversarial", "backward", "optimizer", "other"}


@pytest.fixture
def batches(tiny_bert_dir):
    """Lengths in tokens of the sentences of the first four batches of a run: 8, 4, 8, 4."""
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), max_length=32)
    lengths = [len(tokens) for tokens in encoder.tokenize(SENTENCES)[0]]
    order = BatchOrder(lengths, 8, 0)
    return [[lengths[i] for i in batch] for epoch in (0, 1) for batch in order.batches(epoch)]


@pytest.mark.parametrize("path", ["packed", "generic"])
def test_tokens_and_padding_are_those_of_the_batches(make_config, batches, path):
    lines = lines_of(Trainer(make_config(**{"encoder.path": path})).fit())
    num_sentences = num_tokens = 0
    for line, lengths in zip(lines, batches, strict=True):
        num_sentences, num_tokens = num_sentences + len(lengths), num_tokens + sum(lengths)
        padded = len(lengths) * max(lengths)
        assert line["padding_share"] == pytest.approx(1 - sum(lengths) / padded)
        # Both since the start.
        assert line["tokens_per_s"] / line["sentences_per_s"] == pytest.approx(num_tokens / num_sentences)


def test_phases_are_the_time_of_a_step(make_config, monkeypatch):
    """From one line to the next, where it is a second later each time that somebody asks."""
    ticks, times = [0.0], []

    def seconds():
        ticks[0] += 1
        return ticks[0]

    class Times(Callback):
        def on_step(self, trainer, step, metrics):
            if metrics:
                times.append(ticks[0])

    monkeypatch.setattr(gauges, "Clock", partial(Clock, seconds=seconds))
    options = {"train.max_steps": 6, "train.log_every": 2, "train.save_every": 2}
    lines = lines_of(Trainer(make_config(**options), [Times()]).fit())
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line, start, end in zip(lines[1:], times[:-1], times[1:], strict=True):
        phases = {key.removeprefix("time/"): value for key, value in line.items() if key.startswith("time/")}
        assert phases.keys() == PHASES | {"save"} and min(phases.values()) > 0
        assert 2 * sum(phases.values()) == end - start


def test_a_dev_score_has_a_phase(make_config, scored_pairs):
    config = make_config(**{"dev.data": scored_pairs, "train.eval_every": 1, "train.max_steps": 2})
    lines = [line for line in lines_of(Trainer(config).fit()) if "loss" in line]
    assert "time/eval" not in lines[0] and lines[1]["time/eval"] > 0


def test_memory_is_that_of_a_process(make_config):
    lines = lines_of(Trainer(make_config()).fit())
    found = [line["memory_gib"] for line in lines]
    # At least torch and its libraries, at most what a machine has; and a maximum never falls.
    assert 0.05 < found[0] and found[-1] < 1024 and found == sorted(found)
    assert "mfu" not in lines[0], "a CPU's peak is not known"


def test_utilisation_is_flops_over_what_the_card_could_do(make_config, batches, monkeypatch):
    """With a card and a cost that stand in: 1 FLOP a token, 1,000 FLOP/s."""
    asked = []

    def step_flops(config, model_config, num_tokens, num_sentences, length, num_gradients):
        asked.append((num_tokens, num_sentences, length, num_gradients))
        return num_tokens

    costs = types.ModuleType("fastadv.planning.costs")
    costs.step_flops = step_flops
    costs.peak_flops = lambda name, dtype: {("stand-in card", torch.float32): 1000.0}.get((name, dtype))
    monkeypatch.setitem(sys.modules, "fastadv.planning.costs", costs)
    monkeypatch.setattr("fastadv.planning.costs", costs, raising=False)
    monkeypatch.setattr(gauges, "card_name", lambda device: "stand-in card")
    options = {"train.log_every": 2, "train.save_every": 2, "train.max_steps": 4}
    for name, accumulation_steps in (("plain", 1), ("accumulating", 2)):
        options["train.max_steps"] = 4 // accumulation_steps
        options["train.log_every"] = 2 // accumulation_steps
        lines = lines_of(
            Trainer(make_config(name, **options, **{"train.accumulation_steps": accumulation_steps})).fit()
        )
        for i, line in enumerate(lines):
            pair = batches[2 * i : 2 * i + 2]
            num_tokens = sum(map(sum, pair))
            assert asked.pop(0) == pytest.approx((num_tokens / 2, 6, sum(map(max, pair)) / 2, None))
            times = [line[f"time/{phase}"] for phase in PHASES]
            seconds = sum(times) * options["train.log_every"]
            assert line["mfu"] == pytest.approx(num_tokens / (seconds * 1000))
    monkeypatch.setattr(gauges, "card_name", lambda device: "a card nobody knows")
    assert "mfu" not in lines_of(Trainer(make_config("unknown")).fit())[0]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("perturb_special_tokens", [True, False])
def test_norms_of_perturbations_are_means_over_sentences_and_tokens(make_step, sentences, norm, perturb_special_tokens):
    step = make_step(norm=norm, perturb_special_tokens=perturb_special_tokens, num_steps=2)
    batch = step.step.encoder.pack(sentences)
    step.run(batch)
    (found,) = step.found
    order = {"linf": float("inf"), "l2": 2, "l1": 1}[norm]
    ends = batch.cu_seqlens.tolist()
    by_sentence = [found.delta[a:b].flatten().norm(order) for a, b in zip(ends, ends[1:])]
    assert step.step.metrics["delta_norm"].item() == pytest.approx(torch.stack(by_sentence).mean().item())
    tokens = [i for i in range(batch.num_tokens) if perturb_special_tokens or not batch.is_special[i]]
    by_token = [found.eta[i].norm(order) for i in tokens]
    assert step.step.metrics["eta_norm"].item() == pytest.approx(torch.stack(by_token).mean().item())


def test_norms_without_eta(make_step, sentences):
    step = make_step(use_eta=False)
    batch = step.step.encoder.pack(sentences)
    step.run(batch)
    assert norm_sums(step.found[0], batch).keys() == {"delta_norm"}
    assert "eta_norm" not in step.step.metrics


def test_gradients_taken_and_skipped_are_all_there_are(make_config):
    options = {"perturbation.reuse": "adaptive", "perturbation.num_steps": 3, "perturbation.agreement": 0.2}
    lines = lines_of(Trainer(make_config(**options)).fit())
    assert all(line["num_gradients"] + line["gradients_skipped"] == 3 for line in lines)
    assert [line["gradients_skipped"] for line in lines][0] == 0 < lines[1]["gradients_skipped"]
    assert "gradients_skipped" not in lines_of(Trainer(make_config("exact")).fit())[0]

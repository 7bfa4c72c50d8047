"""The benchmarks of training steps and of the attack: what they count and compare. No test asserts a time."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from bench import attack_step, summary, training_step, turns
from bench.steps import gate as step_gate
from bench.steps import summary as step_summary
from bench.steps.cost import StepCounter, measure_costs
from bench.steps.data import MAX_LENGTH, describe_lengths, draw_samples
from bench.steps.models import write_masked_lm
from bench.steps.padded import PublicStructure, SimCSE
from bench.steps.rows import MODES, Mode, Models, build_rows
from fastadv.distributed import processes


@pytest.fixture(scope="module")
def tiny_models(tiny_bert_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    return Models("tiny", str(tiny_bert_dir), write_masked_lm(str(tiny_bert_dir), folder))


@pytest.fixture(scope="module")
def samples(tiny_bert_dir):
    return draw_samples(AutoTokenizer.from_pretrained(tiny_bert_dir), 4)


def test_batches_are_alike_and_the_two_layouts_hold_the_same_tokens(samples):
    for sample in samples:
        assert sample.input_ids.shape == (4, MAX_LENGTH)
        assert torch.equal(sample.input_ids[sample.attention_mask.bool()], sample.packed.input_ids)
        assert torch.equal(sample.attention_mask.sum(1), sample.packed.lengths)
    lengths = torch.cat([sample.packed.lengths for sample in samples]).double()
    assert describe_lengths(samples)["length_mean"] == round(lengths.mean().item(), 2)


def test_minilm_s_sentences_have_about_22_tokens(minilm_dir):
    tokenizer = AutoTokenizer.from_pretrained(minilm_dir)
    for batch_size in (16, 64):
        assert abs(describe_lengths(draw_samples(tokenizer, batch_size))["length_mean"] - 22) < 0.2


def test_the_public_structure_runs_two_passes_an_iteration_and_one_after(tiny_encoder, samples):
    encoder = tiny_encoder(dtype=torch.float32)
    simcse = SimCSE(encoder.hf, torch.nn.Identity()).train()
    passes = []
    encoder.hf.register_forward_hook(lambda module, args, kwargs, output: passes.append(kwargs), with_kwargs=True)
    loss = PublicStructure(simcse, num_steps=3)(samples[0])
    assert torch.isfinite(loss) and len(passes) == simcse.num_passes == 2 * 3 + 1
    assert all(kwargs["attention_mask"].shape == (8, MAX_LENGTH) for kwargs in passes)
    # What the search left in the parameters was wiped.
    assert all(parameter.grad is None for parameter in simcse.parameters())
    loss.backward()
    # Its outer loss is that of SimCSE: no perturbation enters.
    assert "input_ids" in passes[-1] and all("inputs_embeds" in kwargs for kwargs in passes[:-1])


def test_flops_are_those_of_the_products_and_memory_that_of_the_tensors_alive():
    weight = torch.randn(32, 16, requires_grad=True)
    x = torch.randn(8, 16)

    def run():
        (x @ weight.t()).sum().backward()

    found = measure_costs(run, [weight], held_bytes=2**20)
    # The product, and its gradient by the weight.
    assert found["flops"] == 2 * 2 * 8 * 16 * 32
    assert found["total_mib"] >= 1 + 8 * 32 * 4 / 2**20
    assert weight.grad.untyped_storage().nbytes() == 32 * 16 * 4


def test_storages_that_died_do_not_count():
    with StepCounter() as counter:
        for _ in range(5):
            torch.ones(1000)
    assert counter.peak == 4000
    with StepCounter() as counter:
        kept = [torch.ones(1000) for _ in range(5)]
        views = [tensor[1:] for tensor in kept]
    assert counter.peak == 20000 and len(views) == 5


def test_fused_attention_and_the_contrastive_loss_are_counted():
    from fastadv_kernels import info_nce

    q = torch.randn(2, 4, 8, 16)
    with StepCounter() as counter:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert counter.flops == 2 * 2 * (2 * 4) * 8 * 8 * 16
    with StepCounter() as counter:
        info_nce(torch.randn(6, 16), torch.randn(2, 10, 16), temperature=0.1, reduction="none", backend="reference")
    assert counter.flops == 2 * 6 * 20 * 16


def test_every_row_gives_a_finite_loss(tiny_models, samples):
    processes.init_distributed()
    notes = []
    rows = build_rows(tiny_models, 4, [1, 2], [3], ["fp32", "bf16"], samples, note=notes.append)
    assert not notes
    names = [row.name for row in rows]
    assert len(set(names)) == len(names) and names[0] == "simcse stock fp32 torch"
    for mode in MODES:
        for dtype in ("fp32", "bf16"):
            assert any(row.label == mode.label and row.dtype == dtype and row.via == "engine" for row in rows)
    assert "exact N=3 fp32 engine" in names and "exact N=2 fp32 torch" in names and "exact N=2 bf16 torch" in names
    for row in rows:
        for sample in samples[:2]:
            assert torch.tensor(row.run(sample)).isfinite(), row.name


def test_rows_leave_the_weights_as_they_were(tiny_models, samples):
    processes.init_distributed()
    rows = build_rows(tiny_models, 4, [2], [], ["fp32"], samples, has_rtd=False, wanted=lambda label: "exact" in label)
    before = [parameter.clone() for row in rows for parameter in row.parameters()]
    for row in rows:
        row.run(samples[0])
    after = [parameter for row in rows for parameter in row.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_the_configuration_refuses_is_left_out_by_name(tiny_models, samples, monkeypatch):
    processes.init_distributed()
    unknown = Mode("telepathic", ("--objective=robustsentembed", "--perturbation.reuse=telepathic"))
    monkeypatch.setattr("bench.steps.rows.MODES", (MODES[0], unknown))
    notes = []
    rows = build_rows(tiny_models, 4, [1], [], ["fp32"], samples, note=notes.append)
    assert "telepathic" not in {row.label for row in rows} and "left out: telepathic" in notes[0]


def test_the_gate_stops_a_run_whose_exact_is_not_none(tiny_models, monkeypatch):
    step_gate.require_exact_is_none(tiny_models.encoder)
    outcome = step_gate._outcome

    def wrong(model, options, num_steps):
        found = outcome(model, options, num_steps)
        if any("reuse=exact" in option for option in options):
            found["delta"] = found["delta"] * (1 + 1e-11)
        return found

    monkeypatch.setattr(step_gate, "_outcome", wrong)
    with pytest.raises(RuntimeError, match="exact: delta is off by 1.0e-11"):
        step_gate.require_exact_is_none(tiny_models.encoder)


def test_turns_rotate_and_dear_rows_take_fewer():
    class Counted:
        def __init__(self, name):
            self.name, self.seen = name, []

        def run(self, sample):
            self.seen.append(sample)
            return 0.0

    every = turns.plan_turns({"cheap": 1.0, "dear": 7.0, "medium": 3.5})
    assert every == {"cheap": 1, "dear": 3, "medium": 2}
    rows = [Counted(name) for name in every]
    times = turns.take_turns(rows, ["a", "b"], every, end=float("inf"), most=6)
    # The first, which all are compared with, three times a turn.
    assert [len(row.seen) for row in rows] == [18, 2, 3]
    # Whoever takes part in a turn has that turn's batch.
    assert rows[0].seen == list("aaabbb" * 3) and rows[1].seen == ["a", "b"] and rows[2].seen == ["a", "a", "a"]
    assert sorted(times["dear"]) == [0, 3]
    # Without any time left each still has its fewest turns.
    times = turns.take_turns(rows, ["a", "b"], every, end=0.0)
    assert {name: len(found) for name, found in times.items()} == {"cheap": 4, "dear": 2, "medium": 2}


def test_a_run_that_was_interrupted_goes_on(tiny_models, tmp_path, monkeypatch):
    path = tmp_path / "steps.json"
    groups = tuple(training_step.Group("minilm", size, (1,), (2,), 0.5) for size in (2, 3))
    monkeypatch.setattr(training_step, "QUICK", groups)
    arguments = ["--quick", "--model", tiny_models.encoder, "--budget-s", "1", "--json", str(path), "--dtypes", "fp32"]
    arguments += ["--only", "packed", "exact"]
    run_group = training_step.run_group

    def interrupted(group, *rest):
        if group is groups[1]:
            raise KeyboardInterrupt
        return run_group(group, *rest)

    monkeypatch.setattr(training_step, "run_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training_step.main(arguments)
    first = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    assert {benchmark["group"] for benchmark in first} == {"training_step minilm B=2"}
    monkeypatch.setattr(training_step, "run_group", run_group)
    assert training_step.main([*arguments, "--resume"]) == 0
    whole = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    assert whole[: len(first)] == first
    assert {benchmark["group"] for benchmark in whole[len(first) :]} == {"training_step minilm B=3"}
    with pytest.raises(SystemExit, match="written with settings"):
        training_step.main([*arguments, "--resume", "--threads", "2"])
    # The table and the picture of what was written.
    text = step_summary.training_table(json.loads(path.read_text(encoding="utf-8")))
    assert "**minilm B=2**" in text and "**minilm B=3**" in text
    step_summary.draw_training(json.loads(path.read_text(encoding="utf-8")), tmp_path / "steps.png")
    assert (tmp_path / "steps.png").stat().st_size > 1000


def test_the_attack_alone_is_measured_on_every_reuse_and_norm(tiny_models, tmp_path, monkeypatch, capsys):
    path = tmp_path / "attack.json"
    arguments = ["--model", tiny_models.encoder, "--batch-size", "3", "--steps", "2", "--budget-s", "0"]
    assert attack_step.main([*arguments, "--json", str(path)]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    kinds = {
        (b["extra_info"]["reuse"], b["extra_info"]["norm"], b["extra_info"]["backend"]) for b in found["benchmarks"]
    }
    assert len(kinds) == len(attack_step.REUSE) * 3 * 2
    monkeypatch.setattr("sys.argv", ["summary", str(path), "--figure", str(tmp_path / "attack.png")])
    assert summary.main() == 0
    assert "sentences/s" in capsys.readouterr().out and (tmp_path / "attack.png").stat().st_size > 1000


def benchmark(row, cpu, dtype="fp32", num_steps=5, via="engine", first_turn=0, gflop=100.0, total_mib=100.0, **info):
    """A hand-made one: CPU seconds turn by turn."""
    seconds = {"median": sorted(cpu)[len(cpu) // 2], "min": min(cpu), "q1": min(cpu), "q3": max(cpu), "data": cpu}
    extra = {
        "row": row,
        "dtype": dtype,
        "via": via,
        "num_steps": num_steps,
        "turns": list(range(first_turn, first_turn + len(cpu))),
    }
    extra |= {"wall": {"median": 1.0}, "ratio_wall": {"median": 1.0}, "flops": gflop * 1e9, "first_metrics": {}}
    extra |= {
        "gflop_per_s": gflop / seconds["median"],
        "total_mib": total_mib,
        "working_mib": total_mib / 2,
        "threads": 1,
    }
    extra |= {f"length_{name}": 22.0 for name in ("mean", "sd", "q1", "median", "q3")} | {"padded_length": 32} | info
    return {"name": row, "group": "training_step minilm B=16", "stats": seconds, "extra_info": extra}


def test_ratios_and_verdicts_of_a_hand_made_file():
    found = {
        "benchmarks": [
            # The machine is twice as slow in the second turn: ratios are taken turn by turn.
            benchmark("simcse stock", [1.0, 2.0, 1.0], num_steps=None, via="torch"),
            benchmark("simcse stock", [0.6, 1.2, 0.6], "bf16", num_steps=None, via="autocast"),
            benchmark("simcse stock", [0.5, 1.0, 0.5], "bf16", num_steps=None, via="torch"),
            benchmark("exact", [1.9, 3.8, 1.9], total_mib=99.0, gflop=200.0),
            benchmark("exact", [1.8, 3.6, 1.8], via="torch"),
            benchmark("exact", [2.9, 5.8, 2.9], num_steps=10),
            benchmark("exact", [0.8, 1.6, 0.8], "bf16"),
            benchmark("adaptive", [1.15, 2.3, 1.15], first_metrics={"reuse_gain_share": 0.97}),
            benchmark("adaptive probe", [2.15, 4.3, 2.15]),
            benchmark("rtd unigram", [4.8, 2.4], first_turn=1),
            benchmark("public", [9.5], first_turn=0),
            benchmark("scal", [0.8, 1.6, 0.8], num_steps=None),
            benchmark("scal textbook", [1.6, 3.2, 1.6], num_steps=None),
        ]
    }
    (steps,) = step_summary.groups_of(found["benchmarks"]).values()
    verdicts = {t.what: (t.measured, t.verdict) for t in step_summary.targets("minilm B=16", steps)}
    expected = {
        "exact, fp32, no RTD": (1.9, "PASS"),
        "exact, bf16, no RTD": (0.8, "short"),
        # A probe of one stock step more, every hundredth step.
        "adaptive, fp32, probes amortised": (1.16, "PASS"),
        "adaptive, bf16, probes amortised": (None, "not run"),
        "adaptive, fp32, share of the gain": (0.97, "short"),
        "USCAL, fp32": (None, "not run"),
        "SCAL, fp32, of its textbook form": (0.5, "PASS"),
        "rtd unigram adds, fp32": (0.5, "short"),
        "rtd generator adds, fp32": (None, "not run"),
        "peak live memory, exact, fp32, of SimCSE's": (0.99, "PASS"),
        "one more inner step, exact, fp32": (0.2, "PASS"),
        "the public code's structure, fp32": (9.5, "measured"),
        "stock's GFLOP/s over exact's, fp32": (100 / 1.0 / (200 / 1.9), "PASS"),
        "the engine adds to exact, fp32": (1.9 / 1.8 - 1, "short"),
        "the engine adds to exact, bf16": (None, "not run"),
    }
    assert verdicts.keys() == expected.keys()
    for what, (measured, verdict) in expected.items():
        assert verdicts[what] == (measured if measured is None else pytest.approx(measured), verdict), what
    exact_bf16 = steps.find("exact", "bf16", 5)
    # Of the faster of stock's two ways.
    assert steps.ratio(exact_bf16, steps.find("simcse stock", "bf16")) == pytest.approx(1.6)
    assert step_summary.lines_of(steps, "fp32")["exact"] == pytest.approx({5: 1.9, 10: 2.9})
    assert "| exact | 5 | bf16 | engine | 0.800 (0.800 to 1.600) | 0.800 | 1.600 |" in step_summary.training_table(
        found
    )


def test_a_file_without_stock_simcse_is_refused():
    with pytest.raises(ValueError, match="no row of stock SimCSE in fp32"):
        step_summary.groups_of([benchmark("exact", [1.0])])

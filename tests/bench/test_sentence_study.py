"""The sentence study: its arms and their order, records, numbers against numpy, reports of what is done, resumption."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import bench.studies.sentence_study as study
from bench.studies.sentence.arm import at_few_words, num_steps, training_settings
from bench.studies.sentence.arms import (
    ARMS,
    BY_NAME,
    EXPLORATION,
    REFERENCE,
    SMOKE,
    STEPS,
    TIME,
    Job,
    Sizes,
    guessed_seconds,
    jobs_of,
    needed_by,
)
from bench.studies.sentence.plots import plot
from bench.studies.sentence.read import missing, systems_at_equal_steps, systems_at_equal_time, table
from bench.studies.sentence.records import (
    AT_TWO_WORDS,
    Record,
    model_name,
    packed,
    read_record,
    read_records,
    unpacked,
    without_pairs,
    write_record,
)
from bench.studies.sentence.report import report, tables_of
from fastadv import UserError, load_config
from fastadv.evaluation.suite.numbers import Measured, Quantity, spearman_measured
from fastadv.evaluation.text.rows import TextAttackRow

RETRIEVAL = Quantity("embeddings", "held out", "retrieval@1", 0.2, "%")
SUCCESS = Quantity("text-deepwordbug", "sentences", "attack success", None, "%", "lower")
STS_B = Quantity("sts", "STS-B", "spearman")
ALL = list(BY_NAME)
EVERY = jobs_of(ALL, [0, 1, 2])


def rows_of(name, seed, share, num=200):
    drawn = np.random.default_rng(zlib.crc32(f"{name}{seed}".encode())).random(num)
    return 100.0 * (drawn < share)


def of_rows(quantity, rows):
    value = float(np.nanmean(rows))
    return Measured(quantity, "?", value, num=int(np.isfinite(rows).sum()), rows=rows, is_binary=True)


def made(name, seed, *measured, a_step=1.0, steps=80, missing_parts=None, text=None):
    model = model_name(name, seed)
    own = {one.quantity: Measured(**{**vars(one), "model": model}) for one in measured}
    facts = {"sizes": SMOKE.as_dict(), "missing": missing_parts or {}, "text": text or {}, "steps": steps}
    facts.update(cpu_s_a_step=a_step, train_cpu_s=steps * a_step, measure_cpu_s={"sts": 2.0})
    return Record(name, seed, own, facts)


def records_of(*records):
    return {(record.name, record.seed): record for record in records}


def resamples(quantity, num):
    draw = np.random.default_rng([0, zlib.crc32(f"{quantity.part}/{quantity.set}".encode())])
    return np.concatenate([draw.multinomial(num, np.full(num, 1 / num), 100) for _ in range(20)])


def three_seeds(name, share, **others):
    return [made(name, seed, of_rows(RETRIEVAL, rows_of(name, seed, share)), **others) for seed in (0, 1, 2)]


# Arms


def test_every_arm_trains_with_settings_that_are_checked():
    for arm in ARMS:
        if arm.settings is not None:
            given = training_settings(Job(arm, 1), Sizes(), 7, Path("runs/never-made"))
            config = load_config(None, [f"--{key}={value}" for key, value in given.items()])
            assert (config.train.max_steps, config.train.seed, config.engine.num_threads) == (7, 1, 1)
            # Of the perturbation's size alone there is a second record, which plots read.
            assert arm.epsilon == config.perturbation.epsilon_relative
    assert load_config(None, [f"--{k}={v}" for k, v in BY_NAME["l1"].settings.items()]).perturbation.norm == "l1"
    assert BY_NAME["weight-1/128"].settings["objective_options.weight_adversarial"] == str(1 / 128)


def test_jobs_come_so_that_a_study_cut_short_still_answers_most():
    groups = [(job.arm.group, job.seed) for job in EVERY]
    order = [(STEPS, 0), (TIME, 0), (EXPLORATION, 0), (STEPS, 1), (TIME, 1), (STEPS, 2), (TIME, 2)]
    assert list(dict.fromkeys(groups)) == order
    keys = [job.key for job in EVERY]
    assert len(set(keys)) == len(keys) and "untrained" in keys and "untrained-seed1" not in keys
    for number, job in enumerate(EVERY):
        for needed in needed_by(job):
            assert needed.key in keys[:number], f"{job.key} needs {needed.key} before it"
    assert all(job.control is None for job in EVERY if job.seed)
    assert jobs_of(["exact", "untrained"], [2])[-1].key == "exact-seed2"
    assert jobs_of(["l2"], [1, 2]) == []
    assert [job.key for job in jobs_of(["l2"], [1, 2], repeat_explorations=True)] == ["l2-seed1", "l2-seed2"]


def test_equal_time_gives_a_cheaper_system_more_steps(tmp_path):
    for name, a_step in (("exact", 2.0), ("simcse", 0.8), ("adaptive", 1.95)):
        write_record(tmp_path / Job(BY_NAME[name], 0).key, made(name, 0, a_step=a_step))
    assert num_steps(Job(BY_NAME["simcse, equal time"], 2), Sizes(steps=80), tmp_path) == 200
    assert num_steps(Job(BY_NAME["adaptive, equal time"], 0), Sizes(steps=80), tmp_path) is None
    assert num_steps(Job(BY_NAME["longer"], 0), Sizes(steps=80), tmp_path) == 320
    with pytest.raises(UserError, match="follow from the time of uscal"):
        num_steps(Job(BY_NAME["uscal, equal time"], 0), Sizes(steps=80), tmp_path)


# Records


def test_values_are_kept_to_a_sixty_thousandth_of_their_range():
    values = np.array([-3.0, np.nan, 0.1234567, 8.0])
    steps, of_range = packed(values)
    assert steps.dtype == np.uint16 and of_range == [-3.0, 8.0]
    back = unpacked(steps, of_range)
    assert np.isnan(back[1]) and back[[0, 3]].tolist() == [-3.0, 8.0] and abs(back[2] - values[2]) < 11 / 120_000
    # Right and wrong stay exact: McNemar's test counts them.
    outcomes = np.array([0.0, 100.0, np.nan, 100.0])
    np.testing.assert_array_equal(unpacked(*packed(outcomes)), outcomes)
    np.testing.assert_array_equal(unpacked(*packed(np.full(3, 7.5))), np.full(3, 7.5))
    assert np.isnan(unpacked(*packed(np.full(2, np.nan)))).all()


def test_a_record_is_read_as_it_was_written(tmp_path):
    n_a = Measured(STS_B, "?", None, why="a single pair")
    record = made("exact", 1, of_rows(SUCCESS, np.array([0, 100, np.nan])), n_a)
    assert read_record(tmp_path) is None
    write_record(tmp_path, record)
    back = read_record(tmp_path)
    assert (back.name, back.seed, back.facts) == ("exact", 1, record.facts)
    assert back.measured[STS_B].why == "a single pair" and back.measured[SUCCESS].is_binary
    np.testing.assert_array_equal(back.measured[SUCCESS].rows, record.measured[SUCCESS].rows)
    (tmp_path / "measured.npz").write_bytes(b"PK damaged")
    with pytest.raises(UserError, match="remove the folder"):
        read_record(tmp_path)


def test_arms_of_other_sizes_are_not_mixed(tmp_path):
    write_record(tmp_path / "a", made("exact", 0))
    other = made("simcse", 0)
    other.facts["sizes"] = Sizes().as_dict()
    write_record(tmp_path / "b", other)
    with pytest.raises(UserError, match="other sizes"):
        read_records(tmp_path)


def test_correlations_keep_their_resamples_and_no_scores(tmp_path):
    drawn = np.random.default_rng(0)
    human = drawn.integers(0, 6, 60).astype(float)
    scores = {name: human + drawn.normal(size=60) * noise for name, noise in (("simcse", 3.0), ("exact", 1.0))}
    of_arms = [made(n, 0, without_pairs(spearman_measured(STS_B, n, s, human))) for n, s in scores.items()]
    assert all(record.measured[STS_B].ranked is None for record in of_arms)
    for record in of_arms:
        write_record(tmp_path / record.name, record)
    change = table(read_records(tmp_path), {"simcse": "simcse", "exact": "exact"}).cells[STS_B]["exact"].change

    def by_hand(rows):
        return 100 * (
            spearmanr(scores["exact"][rows], human[rows])[0] - spearmanr(scores["simcse"][rows], human[rows])[0]
        )

    draws = [by_hand(np.repeat(np.arange(60), counts)) for counts in resamples(STS_B, 60)[:400]]
    assert change.value == pytest.approx(by_hand(np.arange(60)), abs=1e-9)
    found = table(records_of(*of_arms), {"simcse": "simcse", "exact": "exact"}).cells[STS_B]["exact"].change
    assert (change.low, change.high) == pytest.approx((found.low, found.high), abs=1e-2)
    kept = of_arms[1].measured[STS_B].draws[:400] - of_arms[0].measured[STS_B].draws[:400]
    np.testing.assert_allclose(kept, draws, atol=1e-9)


def test_success_of_few_words_counts_a_longer_change_as_none():
    def row(number, outcome, num_changed):
        texts = (number, "a b c d", None, "positive", outcome, "a b c e", None, "positive", "negative")
        return TextAttackRow(*texts, 0.9, 0.1, 20, 4, num_changed, 0.1, "")

    rows = [row(0, "succeeded", 1), row(1, "succeeded", 3), row(2, "skipped", 0), row(3, "failed", 0)]
    found = at_few_words([of_rows(SUCCESS, np.array([100, 100, np.nan, 0.0]))], "model", rows, 2)
    assert found.quantity == SUCCESS._replace(metric=AT_TWO_WORDS) and found.num == 3
    np.testing.assert_array_equal(found.rows, [100, 0, np.nan, 0])
    assert found.value == pytest.approx(100 / 3)
    assert at_few_words([of_rows(SUCCESS, np.zeros(1))], "model", rows[2:3], 2).value is None
    one = at_few_words([of_rows(SUCCESS, np.array([100, 100, np.nan, 0.0]))], "model", rows, 1)
    assert one.quantity.metric == "attack success, ≤ 1 word" and one.value == pytest.approx(100 / 3)


# Numbers


def test_a_change_is_paired_by_row_and_seed():
    records = records_of(*three_seeds("simcse", 0.4), *three_seeds("exact", 0.8))
    cell = table(records, systems_at_equal_steps(records)).cells[RETRIEVAL]["exact"]
    before, after = (
        np.stack([rows_of(name, s, share) for s in (0, 1, 2)]) for name, share in (("simcse", 0.4), ("exact", 0.8))
    )
    gained = after.mean(axis=0) - before.mean(axis=0)
    draws = resamples(RETRIEVAL, 200) @ gained / 200
    assert cell.mean == pytest.approx(after.mean()) and cell.spread == pytest.approx(after.mean(axis=1).std(ddof=1))
    assert cell.change.value == pytest.approx(gained.mean())
    assert (cell.change.low, cell.change.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))
    assert cell.change.by_seed == pytest.approx(tuple(after.mean(axis=1) - before.mean(axis=1)))
    assert cell.change.is_clear and cell.change.num == 200


def test_a_change_that_one_seed_contradicts_is_not_clear():
    shares = {"simcse": (0.5, 0.5, 0.5), "exact": (0.9, 0.9, 0.3)}
    records = records_of(
        *(made(n, s, of_rows(RETRIEVAL, rows_of(n, s, x))) for n, of in shares.items() for s, x in enumerate(of))
    )
    change = table(records, systems_at_equal_steps(records)).cells[RETRIEVAL]["exact"].change
    assert change.low > 0 and not change.is_clear


def test_only_seeds_that_both_have_are_compared():
    records = records_of(*three_seeds("simcse", 0.4), *three_seeds("exact", 0.8)[:2], made("uscal", 2))
    cells = table(records, systems_at_equal_steps(records)).cells[RETRIEVAL]
    before = np.mean([rows_of("simcse", s, 0.4) for s in (0, 1)])
    assert set(cells) == {"simcse", "exact"} and len(cells["exact"].by_seed) == 2 and len(cells["simcse"].by_seed) == 3
    assert cells["exact"].change.value == pytest.approx(np.mean([rows_of("exact", s, 0.8) for s in (0, 1)]) - before)


def test_the_untrained_encoder_stands_beside_every_seed():
    untrained = made("untrained", 0, of_rows(RETRIEVAL, rows_of("untrained", 0, 0.2)))
    records = records_of(*three_seeds("simcse", 0.4), untrained)
    cell = table(records, systems_at_equal_steps(records)).cells[RETRIEVAL]["untrained"]
    before = np.stack([rows_of("simcse", s, 0.4) for s in (0, 1, 2)])
    assert cell.spread is None and len(cell.change.by_seed) == 3
    assert cell.change.value == pytest.approx(rows_of("untrained", 0, 0.2).mean() - before.mean())


def test_success_is_compared_on_texts_that_both_got_right():
    first, second = np.array([100, 100, 0, np.nan, 100.0]), np.array([0, np.nan, 0, 100, 100.0])
    records = records_of(made("simcse", 0, of_rows(SUCCESS, first)), made("exact", 0, of_rows(SUCCESS, second)))
    cell = table(records, systems_at_equal_steps(records)).cells[SUCCESS]["exact"]
    assert cell.mean == 50 and cell.change.num == 3
    assert cell.change.value == pytest.approx(100 / 3 - 200 / 3)


def test_without_the_baseline_there_is_no_change():
    records = records_of(*three_seeds("exact", 0.8))
    found = table(records, systems_at_equal_steps(records))
    assert found.baseline == "simcse" and found.cells[RETRIEVAL]["exact"].change is None


def test_a_system_as_expensive_as_the_reference_stands_for_itself_at_equal_time():
    records = records_of(
        made("simcse", 0, a_step=0.8),
        made("simcse, equal time", 0, a_step=0.8, steps=200),
        made("exact", 0, a_step=2.0),
        made("adaptive+rtd", 0, a_step=2.1),
        made("uscal", 0, a_step=1.0),
    )
    expected = {"simcse": "simcse, equal time", "exact": "exact", "adaptive+rtd": "adaptive+rtd"}
    assert systems_at_equal_time(records) == expected
    absent = {job.key for job in missing(records, EVERY)}
    assert "uscal-equal-time-seed0" in absent and "adaptive+rtd-equal-time-seed1" not in absent


# The report


def whole(**others):
    text = {"deepwordbug": {"success": shares(0.9), "no_control": "it is a baseline, or not of seed 0"}}
    controlled = {"success": shares(0.7), "baseline": "simcse", "control": shares(0.8), "no_control": None}
    controlled.update(verdict="gain", verdict_at_2_words="lean")
    no_sts = {"sts": "no folder of SentEval was given"}
    records = [
        r for name, share in (("simcse", 0.4), ("exact", 0.8)) for r in three_seeds(name, share, missing_parts=no_sts)
    ]
    records[0].facts["text"], records[3].facts["text"] = text, {"deepwordbug": controlled}
    at_noise = made("eps-0.4", 0, of_rows(RETRIEVAL, rows_of("eps-0.4", 0, 0.9)), missing_parts=no_sts)
    return records_of(*records, at_noise)


def shares(value):
    return {cap: {"value": value} for cap in ("any", "words_2", "share_20")}


def test_a_report_of_what_is_done_says_what_is_missing():
    text, numbers = report(whole(), EVERY)
    assert "7 arms are done" in text and "uscal-seed0" in text.split("missing")[1].split(".")[0]
    assert "sts: no folder of SentEval was given (every arm)" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| retrieval@1, ε 0.2")][:1]
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    values = [100 * np.mean([rows_of("exact", s, 0.8) > 0 for s in (0, 1, 2)])]
    assert len(cells) == 2 and cells[1].startswith(f"{values[0]:.1f} ± ") and cells[1].endswith("]*")
    assert "| exact | deepwordbug | 70.0 % | 70.0 % | simcse | 80.0 % | gain | lean |" in text
    row = next(r for r in numbers["tables"]["explorations"] if r["system"] == "eps-0.4")
    assert row["change"]["num"] == 200 and row["by_seed"].keys() == {"0"}
    json.dumps(numbers, allow_nan=False)


def test_an_exploration_of_several_seeds_stands_beside_the_systems():
    assert "Explorations over seeds" not in report(whole(), EVERY)[0] and tables_of(whole())["repeated"].cells == {}
    text, numbers = report(records_of(*whole().values(), *three_seeds("l2", 0.9)), EVERY)
    line = next(
        line
        for line in text.split("Explorations over seeds")[1].splitlines()
        if line.startswith("| retrieval@1, ε 0.2")
    )
    simcse, exact, l2 = (cell.strip() for cell in line.split("|")[2:-1])
    assert simcse.startswith(f"{100 * np.mean([rows_of('simcse', s, 0.4) > 0 for s in (0, 1, 2)]):.1f} ± ")
    assert exact.endswith("]*")
    assert l2.startswith(f"{100 * np.mean([rows_of('l2', s, 0.9) > 0 for s in (0, 1, 2)]):.1f} ± ")
    row = next(r for r in numbers["tables"]["repeated"] if r["system"] == "l2")
    assert row["by_seed"].keys() == {"0", "1", "2"} and len(row["change"]["by_seed"]) == 3
    assert "l2-seed1" not in numbers["missing"]


def test_a_report_of_a_single_arm_and_its_plot(tmp_path):
    for records in (records_of(made("eps-0.4", 0, of_rows(RETRIEVAL, rows_of("e", 0, 0.9)))), whole()):
        text, _ = report(records, EVERY)
        assert "Explorations" in text
        plot(records, tables_of(records), tmp_path / "study.png")
        assert (tmp_path / "study.png").read_bytes()[:4] == b"\x89PNG"


# Running


def test_what_is_done_is_not_run_again_and_the_rest_in_order(tmp_path, monkeypatch, capsys):
    started = []

    def run_logged(module, arguments, log, what, threads):
        name, seed = arguments[arguments.index("--arm") + 1], int(arguments[arguments.index("--seed") + 1])
        started.append(what)
        record = made(name, seed, of_rows(RETRIEVAL, rows_of(name, seed, 0.5)), a_step=1.0 + seed)
        record.facts["sizes"] = Sizes().as_dict()
        write_record(tmp_path / what, record)
        return 2.0

    monkeypatch.setattr(study, "run_logged", run_logged)
    command = ["--out", str(tmp_path), "--seeds", "0", "1", "--processes", "1"]
    study.main([*command, "--arms", "simcse", "exact"])
    assert started == ["simcse-seed0", "exact-seed0", "simcse-seed1", "exact-seed1"]
    study.main([*command, "--arms", "simcse", "exact", "simcse, equal time", "steps-1"])
    said = capsys.readouterr().out
    # SimCSE costs here what exact does, which its second seed is not asked yet.
    left = [line for line in said.splitlines() if "arms left" in line]
    assert left[-2].startswith("2 arms left") and left[-1].startswith("0 arms left")
    assert started[4:] == ["steps-1-seed0", "steps-1-seed1"] and "itself is at equal time" in said
    assert {path.name for path in tmp_path.iterdir()} >= {"study.md", "study.json", "study.png"}


def test_an_arm_whose_baseline_is_not_done_says_so(tmp_path):
    with pytest.raises(SystemExit, match="eps-0.4-seed0 needs exact-seed0, which is not done"):
        study.main(["--out", str(tmp_path), "--arms", "eps-0.4", "--processes", "1"])
    with pytest.raises(SystemExit, match="no finished arm"):
        study.main(["--out", str(tmp_path), "--report"])
    write_record(tmp_path / "exact-seed0", made("exact", 0))
    with pytest.raises(SystemExit, match="other sizes; give another folder"):
        study.main(["--out", str(tmp_path)])


def test_a_plan_runs_nothing_and_knows_what_is_done(tmp_path, capsys):
    write_record(tmp_path / "exact-seed0", made("exact", 0))
    study.main(["--out", str(tmp_path), "--dry_run", "--arms", "simcse", "exact", "--seeds", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert "min" in lines[0] and lines[1].split() == ["exact-seed0", "done"] and lines[2].startswith("2 arms")
    assert guessed_seconds(Job(BY_NAME[REFERENCE], 0), Sizes(), True) > guessed_seconds(
        Job(BY_NAME[REFERENCE], 1), Sizes(), True
    )

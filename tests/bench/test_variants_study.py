"""The sentence study's second part: its arms, p-values, tables and page from rows made by hand, the probe on edits."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import bench.studies.sentence_study as study
from bench.studies.sentence import variants_page
from bench.studies.sentence.arm import Measuring, num_steps, training_settings
from bench.studies.sentence.arms import EXPLORATION, SHARED, STEPS, TIME, Job, guessed_seconds, jobs_of, needed_by
from bench.studies.sentence.probe_on_edits import EDITS, probe_on_edits, under
from bench.studies.sentence.read import Change, systems_at_equal_time, table
from bench.studies.sentence.records import Record, at_words, model_name, read_records, write_record
from bench.studies.sentence.variants import EDITS as TRAINED_EDITS
from bench.studies.sentence.variants import SEARCHED, VARIANTS, uses_word_sets
from bench.studies.sentence.variants_page import AIMS, BY_HAND, SUBJECTS, TRANSFERS, by_system, p_value, tables_of
from fastadv import UserError, load_config
from fastadv.data.variants.word_sets import WordSets
from fastadv.evaluation.suite.numbers import Measured, Quantity

EVERY = jobs_of(list(VARIANTS.by_name), [0, 1, 2], design=VARIANTS)
SIMCSE_TIMED = f"simcse, time of {SEARCHED}"
DEEPWORDBUG = Quantity("text-deepwordbug", "sentiment.csv", at_words(2), None, "%", "lower")
ANY_WORDS = DEEPWORDBUG._replace(metric="attack success")
CLEAN = Quantity("probe", "sentiment.csv", "accuracy", None, "%")
UNSEEN = CLEAN._replace(metric=under("drop, neighbour and double"))
NEARER = Quantity("robustness", "sentiment.csv", "typos nearer than antonym", None, "%")
NUM = 200


def of_share(quantity, name, seed, share):
    """The share is exact; which rows are among it is drawn."""
    order = np.random.default_rng(zlib.crc32(f"{quantity}{name}{seed}".encode())).permutation(NUM)
    return Measured(quantity, "?", 100.0 * share, num=NUM, rows=100.0 * (order < share * NUM), is_binary=True)


def made(name, seed, shares, a_step=1.0, steps=150):
    measured = [of_share(quantity, name, seed, share) for quantity, share in shares.items()]
    own = {one.quantity: Measured(**{**vars(one), "model": model_name(name, seed)}) for one in measured}
    facts = {"sizes": VARIANTS.sizes.as_dict(), "missing": {"sts": "no folder of SentEval was given"}, "text": {}}
    facts.update(steps=steps, cpu_s_a_step=a_step, train_cpu_s=steps * a_step, measure_cpu_s={"probe": 2.0})
    return Record(name, seed, own, facts)


def seeds_of(name, shares, **others):
    return {(name, seed): made(name, seed, shares, **others) for seed in (0, 1, 2)}


def whole():
    simcse = {ANY_WORDS: 0.99, DEEPWORDBUG: 0.7, CLEAN: 0.75, UNSEEN: 0.5, NEARER: 0.3}
    searched = {ANY_WORDS: 0.8, DEEPWORDBUG: 0.4, CLEAN: 0.745, UNSEEN: 0.7, NEARER: 0.85}
    others = {ANY_WORDS: 0.9, DEEPWORDBUG: 0.55, CLEAN: 0.70, UNSEEN: 0.65, NEARER: 0.6}
    return {
        **seeds_of("simcse", simcse, a_step=0.8),
        **seeds_of(SIMCSE_TIMED, simcse, a_step=0.8, steps=300),
        **seeds_of(SEARCHED, searched, a_step=1.6),
        **seeds_of("worst8-swap+insert", others, a_step=1.6),
    }


def line_of(lines, first):
    (line,) = [line for line in lines if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


# Arms


def test_every_arm_trains_with_settings_that_are_checked():
    texts = {}
    for arm in VARIANTS.arms:
        if arm.settings is not None:
            given = training_settings(Job(arm, 1, VARIANTS), VARIANTS.sizes, 7, Path("runs/never-made"))
            given |= {"data.word_sets": "sets.json"} if uses_word_sets(arm) else {}
            config = load_config(None, [f"--{key}={value}" for key, value in given.items()])
            texts[arm.name] = config.perturbation.text
            assert (config.objective == "robustsentembed") == ("pgd2" in arm.name or "gentle" in arm.name)
    assert texts["worst4-typos"].num_proposals == 4 and texts["worst8-both"].edits == ["typos", "synonyms"]
    assert texts["gradient-typos"].choose == "gradient" and texts["random-typos"].choose == "random"
    assert texts["worst8-typos+balance"].flips == ["antonym", "negation", "number", "name"]
    assert texts["simcse"].edits == []
    assert {name for name, text in texts.items() if "synonyms" in text.edits or text.flips} == {
        arm.name for arm in VARIANTS.arms if uses_word_sets(arm)
    }


def test_variants_train_in_the_place_of_the_second_dropout_view_with_what_the_first_part_shares():
    for arm in VARIANTS.arms:
        settings = arm.settings or {}
        assert not set(settings) & set(SHARED)
        has_text = "perturbation.text.edits" in settings
        assert has_text == ("objective_options.text_positive" in settings)
        assert has_text == any(f"-{edits}" in (arm.system or arm.name) for edits in TRAINED_EDITS)


def test_the_quickstart_is_an_arm():
    quickstart = load_config("configs/quickstart.yaml")
    settings = {**SHARED, **VARIANTS.by_name["worst8-typos+keep+gentle"].settings}
    ours = load_config(None, [f"--{k}={v}" for k, v in settings.items()])
    for stage in ("encoder", "data", "perturbation", "optimizer", "objective", "objective_options"):
        assert getattr(ours, stage) == getattr(quickstart, stage)


def test_what_is_waited_for_comes_first_and_a_study_cut_short_has_seed_0():
    keys = [job.key for job in EVERY]
    assert len(set(keys)) == len(keys) and "untrained" in keys and "simcse-time-of-worst8-typos-seed1" in keys
    for number, job in enumerate(EVERY):
        for needed in needed_by(job):
            assert needed.key in keys[:number], f"{job.key} needs {needed.key} before it"
    seeds = [job.seed for job in EVERY]
    aside = [arm.name for arm in VARIANTS.arms if arm.group == EXPLORATION]
    assert seeds == sorted(seeds) and seeds.count(1) == seeds.count(2) == len(VARIANTS.arms) - 1 - len(aside)
    assert len(jobs_of(aside, [0, 1, 2], repeat_explorations=True, design=VARIANTS)) == 3 * len(aside)
    assert {needed.key for needed in needed_by(EVERY[3])} == {"simcse-seed0", f"{SEARCHED}-seed0"}


def test_an_arm_at_equal_time_has_the_time_of_its_own_reference(tmp_path):
    for name, a_step in (("simcse", 0.8), (SEARCHED, 1.6)):
        write_record(tmp_path / f"{name}-seed0", made(name, 0, {}, a_step=a_step))
    arm = VARIANTS.by_name[SIMCSE_TIMED]
    assert arm.group == TIME and arm.baseline == arm.name
    assert num_steps(Job(arm, 2, VARIANTS), VARIANTS.sizes, tmp_path) == 300
    with pytest.raises(UserError, match="follow from the time of random-typos"):
        num_steps(Job(VARIANTS.by_name[f"random-typos, time of {SEARCHED}"], 0, VARIANTS), VARIANTS.sizes, tmp_path)


def test_every_arm_meets_every_attack_with_every_seed():
    sizes = VARIANTS.sizes
    expected = {"deepwordbug": sizes.num_texts, "textbugger": sizes.num_texts_textbugger, "pwws": sizes.num_texts_pwws}
    assert all(job.recipes(sizes) == expected and not job.has_all_sets for job in EVERY)
    timed = next(job for job in EVERY if job.arm.group == TIME)
    assert guessed_seconds(timed, sizes, True) > guessed_seconds(timed, sizes, False) > 0
    kept = {job.key for job in EVERY if job.keeps_model and job.seed == 0}
    timed = Job(VARIANTS.by_name[SIMCSE_TIMED], 0, VARIANTS).key
    assert kept == {"simcse-seed0", timed, *(f"{name}-seed0" for name in VARIANTS.trained_from)}
    assert {job.arm.name for job in EVERY if job.keeps_model and job.seed == 1} == {"simcse", SIMCSE_TIMED}


def test_only_parts_with_a_size_are_measured(tmp_path, monkeypatch):
    begun = []

    def measuring(design):
        found = Measuring(Job(design.by_name["simcse"], 0, design), design.sizes, tmp_path, "?", study.Files())

        def say(name):
            begun.append(name)
            raise UserError("not here")

        monkeypatch.setattr(found, "_text", lambda recipe, count: say(recipe))
        for name in ("sts", "adv_sts", "geometry", "embeddings", "robustness", "probe_on_edits"):
            monkeypatch.setattr(found, f"_{name}", lambda name=name: say(name))
        found.run()
        assert set(found.missing) == set(found.cpu_s) and len(begun) == len(found.missing)
        return begun[:], begun.clear()

    of_variants, _ = measuring(VARIANTS)
    assert of_variants == "sts adv_sts geometry robustness probe_on_edits deepwordbug textbugger pwws".split()
    assert measuring(study.EMBEDDINGS)[0] == "sts geometry embeddings deepwordbug pwws".split()


# Numbers


def test_the_p_value_is_that_of_the_interval():
    change = Change(3.0, 1.0, 5.0, NUM, (3.0,))
    assert p_value(change) == pytest.approx(2 * norm.sf(3.0 / (4.0 / (2 * 1.959964))), rel=1e-5)
    assert p_value(Change(0.0, 0.0, 0.0, NUM, (0.0,))) == 1.0
    assert p_value(Change(-100.0, -100.0, -100.0, 4, (-100.0,))) == pytest.approx(1 / 8)
    assert p_value(Change(-3.0, -5.0, -1.0, NUM, (3.0,))) == p_value(change)


def test_a_change_that_holms_correction_takes_away_has_one_star():
    # Clear by itself, at p near 0.03; beside a quantity that says nothing its p is doubled.
    records = {
        **seeds_of("simcse", {DEEPWORDBUG: 0.5, ANY_WORDS: 0.9, CLEAN: 0.7}),
        **seeds_of("worst8-typos", {DEEPWORDBUG: 0.2, ANY_WORDS: 0.9, CLEAN: 0.64}),
    }
    found = table(records, {"simcse": "simcse", "worst8-typos": "worst8-typos"})
    lines = [line for some in SUBJECTS.values() for line in some if line.of(found)]
    changes = {line.label: line.of(found)["worst8-typos"].change for line in lines}
    p_values = {label: p_value(change) for label, change in changes.items()}
    cells = dict(zip(p_values, line_of(by_system(found, lines), "worst8-typos")))
    assert p_values["DeepWordBug, ≤ 2 words, %"] < 1e-6 and cells["DeepWordBug, ≤ 2 words, %"].endswith("]**")
    p_clean = p_values["the probe, clean, %"]
    assert changes["the probe, clean, %"].is_clear and 0.05 / 2 < p_clean < 0.05
    assert cells["the probe, clean, %"].endswith("]*") and not cells["the probe, clean, %"].endswith("**")
    (alone,) = [line for line in lines if line.label == "the probe, clean, %"]
    assert line_of(by_system(found, [alone]), "worst8-typos")[0].endswith("]**")


def test_at_equal_time_only_what_was_trained_so_long_stands_beside_simcse():
    records = whole()
    expected = {"simcse": SIMCSE_TIMED, SEARCHED: SEARCHED}
    assert systems_at_equal_time(records, VARIANTS, SEARCHED) == expected
    assert list(tables_of(records)["steps"].systems) == ["simcse", SEARCHED, "worst8-swap+insert"]


# The page


def test_every_quantity_of_a_transfer_or_an_aim_is_in_a_table():
    of_tables = {(line.part, line.metric, line.of_set) for lines in SUBJECTS.values() for line in lines}
    lines = [one.line for one in (*AIMS, *TRANSFERS)]
    places = {(line.part, line.metric, line.of_set) for line in lines}
    cosines = {place for place in places if place[1].startswith("cosine, ")}
    assert places - cosines <= of_tables and len(cosines) == 5
    names = {name for one in TRANSFERS for name in (one.trained, one.others)}
    assert names <= {arm.name for arm in VARIANTS.arms if arm.group in (STEPS, EXPLORATION)}


def test_the_report_says_what_is_gained_what_is_left_and_which_aims_are_reached():
    text, numbers = variants_page.report(whole(), EVERY)
    parts = {part.splitlines()[0]: part.splitlines() for part in text.split("\n## ")}
    aims = line_of(parts["The aims"], SEARCHED)
    assert aims == ["**80.0**", "**40.0**", "n/a", "n/a", "**85.0**", "n/a", "**74.5**", "n/a"]
    assert line_of(parts["The aims"], "worst8-swap+insert") == "90.0 55.0 n/a n/a 60.0 n/a 70.0 n/a".split()
    left = line_of(
        parts["Edits that were not trained on"], "the probe under drop, neighbour and double, 50 % of words, %"
    )
    assert left[1] == SEARCHED and left[3] == "worst8-swap+insert" and left[5] == "75"
    assert left[0] == "50.0 ± 0.0" and left[2].startswith("70.0 ± 0.0 [+") and left[2].endswith("]*")
    assert "Steps, and CPU seconds of seed 0: simcse 300 steps (240 s), worst8-typos 150 steps (240 s)." in text
    assert "sts: no folder of SentEval was given (every arm)" in text
    # Two of the twelve were not asked for: seeds 1 and 2 of a side question.
    assert f"12 arms are done; {len(EVERY) - 10} are missing" in text
    row = next(r for r in numbers["tables"]["steps"] if r["system"] == SEARCHED and r["metric"] == at_words(2))
    assert row["mean"] == pytest.approx(40.0) and row["change"]["num"] == NUM
    json.dumps(numbers, allow_nan=False)


def test_without_a_clear_gain_no_share_of_it_is_told():
    records = {**seeds_of("simcse", {UNSEEN: 0.5}), **seeds_of(SEARCHED, {UNSEEN: 0.505})}
    records |= seeds_of("worst8-swap+insert", {UNSEEN: 0.6})
    lines = variants_page.transferred(tables_of(records)["steps"])
    assert lines[2].endswith("| no clear gain |") and len(lines) == 3


def test_the_page_keeps_what_was_written_by_hand(tmp_path):
    page, records = tmp_path / "study-variants.md", whole()
    variants_page.write_page(records, EVERY, page)
    made_at_first = page.read_text()
    assert BY_HAND not in made_at_first and "![what the study measured](study-variants.png)" in made_at_first
    assert (tmp_path / "study-variants.png").read_bytes()[:4] == b"\x89PNG"
    page.write_text(f"{made_at_first}\n{BY_HAND}\n\n* Typing errors are mended.\n\n## What to choose\n\nThat.\n")
    del records["worst8-swap+insert", 0]
    variants_page.write_page(records, EVERY, page)
    text = page.read_text()
    assert "11 arms are done" in text and text.count(BY_HAND) == 1
    assert text.endswith(f"{BY_HAND}\n\n* Typing errors are mended.\n\n## What to choose\n\nThat.\n")


# The probe on edits


def test_the_probe_is_fitted_on_clean_texts_and_asked_about_edited_ones(tmp_path, monkeypatch):
    import bench.studies.sentence.probe_on_edits as module

    asked = []

    class Probe:
        def classify_texts(self, texts):
            asked.append(list(texts))
            return [[0.0, 1.0] if "wonderful" in text else [1.0, 0.0] for text in texts]

    fitted = []
    monkeypatch.setattr(module, "probe_victim", lambda encoder, data: fitted.append(data) or Probe())
    file = tmp_path / "sentiment.csv"
    lines = [f"film {n} was {'wonderful' if n % 2 else 'terrible'},{n % 2}" for n in range(60)]
    file.write_text("text,label\n" + "\n".join(lines) + "\n")
    sets = tmp_path / "sets.json"
    WordSets({"wonderful": ("splendid",), "terrible": ("awful",)}, {}, {"made": "here"}).save(sets)
    found = {one.quantity.metric: one for one in probe_on_edits(None, str(file), 20, 1.0, str(sets), "m")}
    assert list(found) == ["accuracy", *map(under, EDITS)]
    assert found["accuracy"].value == 100.0 and found["accuracy"].num == 20 and found["accuracy"].is_binary
    assert not set(fitted[0].first) & set(asked[0]) and len(fitted[0].first) == 40
    # No positive text is known after its word is gone.
    num_negative = 20 - sum("wonderful" in text for text in asked[0])
    assert found[under("synonyms")].value == pytest.approx(100 * num_negative / 20)
    assert all("splendid" in text or "awful" in text for text in asked[-1])
    again = probe_on_edits(None, str(file), 20, 1.0, str(sets), "m")
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
    assert [one.value for one in again] == [one.value for one in found.values()]
    without = [one.quantity.metric for one in probe_on_edits(None, str(file), 20, 1.0, None, "m")]
    assert without == list(found)[:-1]


# Running


def test_arms_run_once_any_subset_alone_and_end_in_a_page(tmp_path, monkeypatch, capsys):
    started = []

    def run_logged(module, arguments, log, what, threads):
        name, seed = arguments[arguments.index("--arm") + 1], int(arguments[arguments.index("--seed") + 1])
        assert arguments[arguments.index("--part") + 1] == "variants"
        assert arguments[arguments.index("--word_sets") + 1] == "sets.json"
        started.append(what)
        write_record(tmp_path / "out" / what, made(name, seed, {DEEPWORDBUG: 0.5}))
        return 2.0

    monkeypatch.setattr(study, "run_logged", run_logged)
    command = ["--part", "variants", "--out", str(tmp_path / "out"), "--processes", "1", "--word_sets", "sets.json"]
    study.main([*command, "--arms", "simcse", "worst8-both", "--seeds", "0", "1"])
    assert started == ["simcse-seed0", "worst8-both-seed0", "simcse-seed1", "worst8-both-seed1"]
    assert "4 arms, " in capsys.readouterr().out
    study.main([*command, "--arms", "simcse", "untrained", "--seeds", "0"])
    assert started[4:] == ["untrained"]
    page = tmp_path / "page.md"
    study.main([*command, "--report", "--write", str(page)])
    assert len(started) == 5 and "5 arms are done" in page.read_text()
    assert (tmp_path / "out" / "study.md").exists() and len(read_records(tmp_path / "out")) == 5


def test_what_cannot_run_says_so(tmp_path, capsys):
    command = ["--part", "variants", "--out", str(tmp_path), "--processes", "1"]
    with pytest.raises(SystemExit, match="worst8-both trains with synonyms or antonyms: give --word_sets"):
        study.main([*command, "--arms", "simcse", "worst8-both"])
    with pytest.raises(SystemExit, match="no finished arm"):
        study.main([*command, "--report", "--write", str(tmp_path / "page.md")])
    assert not (tmp_path / "page.md").exists()
    with pytest.raises(SystemExit):
        study.main([*command, "--arms", "exact"])
    assert "'worst8-typos'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        study.main(["--write", str(tmp_path / "page.md")])
    assert "docs/study.md is written by hand" in capsys.readouterr().err
    with pytest.raises(UserError, match="no arm is done"):
        variants_page.write_page({}, EVERY, tmp_path / "page.md")

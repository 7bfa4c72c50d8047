"""Folders that a report is made of: small, written by the product's own writers where they need no model."""

import json
import shutil
import tempfile
from functools import wraps
from pathlib import Path

import numpy as np

from fastadv.config.schema import EvaluationConfig
from fastadv.evaluation.before_after.before_after import compare
from fastadv.evaluation.intervals import NUM_RESAMPLES
from fastadv.evaluation.model_names import names_of_seeds, plain_name
from fastadv.evaluation.suite.numbers import Measured, all_numbers, spearman_measured
from fastadv.evaluation.suite.parts import _GEOMETRY
from fastadv.evaluation.suite.report import write_evaluation
from fastadv.evaluation.suite.rows import of_text_rows
from fastadv.evaluation.suite.schema import FORMAT, OF_RMS, Quantity, System
from fastadv.evaluation.text.rows import write_rows
from fastadv.evaluation.text.run import rows_files
from fastadv.evaluation.text_report.report import write_report as write_text_attack
from fastadv.evaluation.vectors.geometry_of_models import write_geometry
from fastadv.files.json_file import json_ready
from tests.evaluation.attacked_rows import LABELS, drawn_rows

EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0)

_MADE = tempfile.TemporaryDirectory()


def made_once(make):
    """``make`` with its folder first: equal arguments are made once, and every call has a copy of its own."""
    known = {}

    @wraps(make)
    def copied(folder, *arguments, **options):
        key = repr((arguments, options))
        if key not in known:
            known[key] = make(Path(_MADE.name) / f"{make.__name__}-{len(known)}", *arguments, **options)
        return Path(shutil.copytree(known[key], folder))

    return copied


def results_of_a_run(seed=0):
    """What results.json holds."""
    rng = np.random.default_rng(seed)
    names = ("retrieval@{}", "centred_cosine@{}", "cosine@{}", "noise_retrieval@{}")
    arrays = {name.format(radius): rng.random(20) for name in names for radius in (0.1, 0.2)}
    for radius in (0.1, 0.2):
        arrays[f"noise_retrieval@{radius}"] = np.ones(20)
    before = {**arrays, "alignment": rng.random(20), "vectors": rng.normal(size=(20, 4))}
    before |= {
        "probe@0": np.ones(18),
        "probe_misspelt": np.ones(18),
        "probe@0.025": np.ones(18),
        "probe@0.05": np.zeros(18),
    }
    after = {name: values if name.startswith("noise") else values * 0.9 for name, values in before.items()}
    after["vectors"] = before["vectors"] + 1
    return compare(before, after, EvaluationConfig(radii=[0.1, 0.2], num_sentences=20))


@made_once
def make_run(folder, num_lines=60, seed=0, objective="uscal", has_results=True):
    """config.yaml, metrics.jsonl and results.json."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    config = f"objective: {objective}\nencoder: {{model: 'demo:minilm'}}\ntrain: {{seed: {seed}, batch_size: 32}}\n"
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    lines = []
    for step in range(1, num_lines + 1):
        noise = rng.normal(scale=0.05)
        row = {"step": 10 * step, "loss": 2 / (1 + step / 20) + noise, "inner_gain": 0.1 + abs(noise), "lr": 1e-5}
        row |= {"uniformity": -2.0 + noise, "vector_rank": 40 + 10 * noise, "grad_norm": 1 + abs(noise)}
        row |= {
            "time/data": 0.01,
            "time/forward": 0.1,
            "time/search": 0.25 + 0.1 * abs(noise),
            "time/adversarial": 0.15,
        }
        row |= {"time/backward": 0.2, "time/optimizer": 0.05, "memory_gib": 1.5, "sentences_per_s": 42.0 + noise}
        lines.append(json.dumps(row))
    lines.append(json.dumps({"step": 10 * num_lines, "dev/score": 81.5, "time/eval": 0.5}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if has_results:
        (folder / "results.json").write_text(json.dumps(results_of_a_run(seed)), encoding="utf-8")
    return folder


def make_embedding_attack(folder, names=("fine-tuning", "scal"), seed=0, epsilons=EPSILONS, models=None, data="abc"):
    """attack.json as `fastadv attack` writes it, of what the report reads; ``models`` are the names' folders."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)

    def estimate(value):
        return {"value": value, "low": max(0.0, value - 0.04), "high": min(1.0, value + 0.04)}

    written_models = []
    for number, (name, model) in enumerate(zip(names, models or names)):
        clean = 0.9 - 0.02 * number
        rows = [
            {"epsilon": e, "accuracy": estimate(clean * float(np.exp(-e * (3 - number / 2 + 0.1 * rng.random()))))}
            for e in epsilons
        ]
        entry = {"name": name, "model": model, "accuracy": estimate(clean), "epsilons": rows}
        written_models.append({**entry, "checks": [], "warnings": ["it masks its gradients"] if number else []})
    settings = {"method": "pgd", "norm": "l2", "epsilons": list(epsilons), "num_steps": 10, "num_restarts": 1}
    about = {"source": "demo:imdb", "split": "test", "num_texts": 500, "hash": data}
    written = {"kind": "attack", "versions": {}, "data": about, "settings": settings, "num_texts": 500}
    written["models"] = written_models
    (folder / "attack.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


@made_once
def make_text_attack(folder, names=("fine-tuning", "scal"), recipe="deepwordbug", num_rows=60, seed=0, facts=None):
    """All files of an attack on texts, by its own writers; ``facts`` has more of a model by its name."""
    rows_of = {name: drawn_rows(num_rows, seed + i) for i, name in enumerate(names)}
    return write_text_rows(folder, rows_of, recipe, facts)


def write_text_rows(folder, rows_of, recipe, facts=None):
    """All files of an attack on texts, of the rows of each model."""
    facts = facts or {}
    runs = [(name, rows, {"labels": list(LABELS), **facts.get(name, {})}) for name, rows in rows_of.items()]
    write_text_attack(folder, runs, {"recipe": recipe, "data": {"source": "demo:imdb", "split": "test"}})
    for rows, path in zip(rows_of.values(), rows_files(folder, list(rows_of))):
        write_rows(path, rows)
    return folder


@made_once
def make_geometry(folder, names=("demo:minilm", "runs/a/model", "runs/b/model"), seed=0):
    """geometry.json, .csv and .png by their own writer."""
    rng = np.random.default_rng(seed)
    models = []
    for i, name in enumerate(names):
        quantities = {}
        for quantity, value in (("alignment", 0.2 + 0.05 * i), ("uniformity", -3.0 + 0.2 * i), ("mean_cosine", 0.02)):
            value = value + 0.01 * rng.random()
            quantities[quantity] = {"value": value, "low": value - 0.02, "high": value + 0.02}
        quantities["effective_rank"] = {"value": 300.0, "low": 299.0, "high": 301.0}
        models.append({"model": name, "quantities": quantities, "spectrum": [1.0, 0.5, 0.1]})
    record = {"data": "STS-B test", "num_sentences": 2551, "positives": "pairs scored above 4", "models": models}
    write_geometry(record, folder)
    return folder


@made_once
def make_evaluation(folder, systems=("simcse", "uscal"), seed=0, num_rows=60, num_seeds=2):
    """evaluation.json by its own writer, of numbers under the suite's own names, and parts beside it."""
    models = [f"runs/{system}-{number}/model" for system in systems for number in range(num_seeds)]
    rng = np.random.default_rng(seed)
    human, measured, rows_of = rng.random(200), [], {}
    for i, model in enumerate(models):
        for name in ("STS-B", "SICK-R"):
            scores = human + rng.normal(scale=0.25 - 0.02 * (i // num_seeds), size=200)
            measured.append(spearman_measured(Quantity("sts", name, "spearman"), model, scores, human))
        measured.append(Measured(Quantity("transfer", "MR", "accuracy"), model, None, why="no such folder"))
        for epsilon in (0.1, 0.2, 0.4):
            clean = Quantity("embeddings", "held-out", "retrieval@1", None, "%")
            quantity = clean.under_attack(epsilon=epsilon, radius_unit=OF_RMS)
            rows = 100.0 * (rng.random(200) < 0.85 - epsilon + 0.05 * (i // num_seeds))
            measured.append(Measured(quantity, model, rows.mean(), num=200, rows=rows, is_binary=True))
        for key, value in (("alignment", 0.2), ("uniformity", -3.0)):
            draws = value + 0.02 * rng.normal(size=NUM_RESAMPLES)
            quantity = Quantity("geometry", "STS-B", key, None, "", _GEOMETRY[key])
            measured.append(
                Measured(
                    quantity, model, value + 0.01 * i, *(value + 0.01 * i + d for d in (-0.04, 0.04)), 200, draws=draws
                )
            )
        rows_of[model] = drawn_rows(num_rows, seed + i)
        measured += of_text_rows("text-deepwordbug", "demo:imdb", model, rows_of[model])
    named = [System(name, tuple(models[i * num_seeds : (i + 1) * num_seeds])) for i, name in enumerate(systems)]
    parts = {"sts": "done", "embeddings": "done", "geometry": "done", "text-deepwordbug": "done", "transfer": "n/a"}
    written = evaluation_record(named, measured, parts, seed)
    written["warnings"] = ["the folds are few"]
    write_evaluation(folder, written)
    names = names_of_seeds({one.name: one.models for one in named})
    make_geometry(folder / "geometry", names, seed)
    # Encoders are attacked with a probe on top.
    facts = {name: {"model": f"victims/{plain_name(name)}-{i:012x}"} for i, name in enumerate(names)}
    make_text_attack(folder / "text-deepwordbug", list(facts), "deepwordbug", num_rows, seed, facts)
    return folder


def evaluation_record(systems, measured, parts, seed=0):
    """What evaluation.json holds of what was measured; ``parts`` are names -> status."""
    found = all_numbers(systems, measured, seed)
    names = names_of_seeds({one.name: one.models for one in systems})
    owners = [(one.name, model) for one in systems for model in one.models]
    known = {"kind": "encoder", "pooling": "mean", "max_length": 64, "fingerprint": "", "why": None}
    of_part = {"files": [], "protocol": {}, "findings": [], "seconds": 1.0}
    whys = {"done": None, "n/a": "no such folder"}
    return {
        "format": FORMAT,
        "systems": [{"name": one.name, "models": list(one.models)} for one in systems],
        "models": [{"model": m, "name": n, "system": s, **known} for (s, m), n in zip(owners, names)],
        "parts": {name: {"status": status, "why": whys[status], **of_part} for name, status in parts.items()},
        **json_ready(vars(found)),
        "warnings": [],
        "versions": {"fastadv": "0.1.0"},
        "seed": seed,
    }

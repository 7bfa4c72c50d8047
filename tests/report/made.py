"""Folders that a report is made of: small, written by the product's own writers where they need no model."""

import json

import numpy as np

from fastadv.config import EvaluationConfig
from fastadv.evaluation.before_after import compare
from fastadv.evaluation.geometry_of_models import write_geometry
from fastadv.evaluation.text_attack_report import write_report as write_text_attack
from fastadv.evaluation.text_attack_rows import write_rows
from fastadv.evaluation.text_attack_run import rows_files
from tests.evaluation.attacked_rows import LABELS, drawn_rows

EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0)


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


def make_embedding_attack(folder, names=("fine-tuning", "scal"), seed=0, epsilons=EPSILONS):
    """attack.json as `fastadv attack` writes it, of what the report reads."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)

    def estimate(value):
        return {"value": value, "low": max(0.0, value - 0.04), "high": min(1.0, value + 0.04)}

    models = []
    for number, name in enumerate(names):
        clean = 0.9 - 0.02 * number
        rows = [
            {"epsilon": e, "accuracy": estimate(clean * float(np.exp(-e * (3 - number / 2))) + 0.01 * rng.random())}
            for e in epsilons
        ]
        models.append({"name": name, "accuracy": estimate(clean), "epsilons": rows, "checks": [], "warnings": []})
    settings = {"method": "pgd", "norm": "l2", "epsilons": list(epsilons), "num_steps": 10, "num_restarts": 1}
    data = {"source": "demo:imdb", "split": "test", "num_texts": 500, "hash": "abc"}
    written = {"kind": "attack", "versions": {}, "data": data, "settings": settings, "num_texts": 500, "models": models}
    (folder / "attack.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def make_text_attack(folder, names=("fine-tuning", "scal"), recipe="deepwordbug", num_rows=60, seed=0):
    """All files of an attack on texts, by its own writers."""
    runs = [(name, drawn_rows(num_rows, seed + i), {"labels": list(LABELS)}) for i, name in enumerate(names)]
    protocol = {"recipe": recipe, "data": {"source": "demo:imdb", "split": "test"}}
    write_text_attack(folder, runs, protocol)
    for (_, rows, _), path in zip(runs, rows_files(folder, list(names))):
        write_rows(path, rows)
    return folder


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


def make_evaluation(folder, systems=("simcse", "uscal"), seed=0):
    """evaluation.json, and parts beside it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    numbers, differences = [], []

    def add(part, set_name, metric, system, value, epsilon=None, unit="x 100", why=None):
        low, high = (None, None) if value is None else (value - 1.5, value + 1.5)
        row = {"part": part, "set": set_name, "metric": metric, "epsilon": epsilon, "system": system, "value": value}
        row |= {"model": None, "low": low, "high": high, "spread": 0.4, "num": 1379, "unit": unit, "better": "higher"}
        numbers.append({**row, "seed": 0, **({"why": why} if why else {})})
        numbers.append({**row, "seed": 0, "model": f"runs/{system}-0/model", "spread": None})

    for i, system in enumerate(systems):
        add("sts", "STS-B", "spearman", system, 78.0 + i + float(rng.random()))
        add("sts", "SICK-R", "spearman", system, 72.0 + i + float(rng.random()))
        add("transfer", "MR", "accuracy", system, None, unit="%", why="no such folder")
        for epsilon in (0.1, 0.2, 0.4):
            value = 70.0 - 100 * epsilon + 5 * i + float(rng.random())
            add("embeddings", "held-out", "retrieval", system, value, epsilon, "%")
        if i:
            row = {"part": "sts", "set": "STS-B", "metric": "spearman", "epsilon": None, "system": system}
            row |= {"baseline": systems[0], "value": 1.0, "low": 0.2, "high": 1.8, "p_value": 0.013}
            differences.append({**row, "test": "paired bootstrap", "num": 1379})
    parts = {"sts": "done", "embeddings": "done", "geometry": "done", "text-deepwordbug": "done", "transfer": "n/a"}
    written = {
        "format": 1,
        "systems": [{"name": name, "models": [f"runs/{name}-0/model", f"runs/{name}-1/model"]} for name in systems],
        "parts": {
            name: {"status": status, "why": "no such folder" if status == "n/a" else None, "files": [], "seconds": 1.0}
            for name, status in parts.items()
        },
        "numbers": numbers,
        "differences": differences,
        "warnings": ["the folds are few"],
        "versions": {"fastadv": "0.1.0"},
        "seed": 0,
    }
    (folder / "evaluation.json").write_text(json.dumps(written), encoding="utf-8")
    make_geometry(folder / "geometry", systems, seed)
    make_text_attack(folder / "text-deepwordbug", systems, seed=seed)
    return folder

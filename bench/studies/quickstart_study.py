"""The quickstart over several seeds, beside SimCSE at equal steps and a run that learns nothing.

    python -m bench.studies.quickstart_study --out runs/quickstart-study

Every arm trains from the same weights on the same text and is measured on the same held-out sentences; the model
before training is measured once. An arm that is done is not run again, so the study can be stopped and gone on with.
It ends in ``study.md`` and ``study.png``.

`bench.studies.sentence_study` asks more (other systems, equal time, STS, attacks on text); this one is of the
quickstart as it ships, and measures what its own table measures.
"""

import argparse
import inspect
import json
from pathlib import Path

import numpy as np

ARMS = ("robustsentembed", "simcse", "learning rate 0")


def arm_config(config_file: str, arm: str, seed: int, folder: Path):
    """The quickstart as ``arm`` runs it; measuring is left to the study."""
    from fastadv import load_config
    from fastadv.objectives import resolve_objective

    own = ["--train.seed", str(seed), "--train.output_dir", str(folder), "--evaluation.enabled", "false"]
    config = load_config(config_file, own)
    if arm == "simcse":
        config.objective, config.perturbation.text.edits = "simcse", []
        known = inspect.signature(resolve_objective("simcse")).parameters
        config.objective_options = {k: v for k, v in config.objective_options.items() if k in known}
        config.objective_options |= {"text_positive": "none", "weight_keep": 0.0}
    elif arm == "learning rate 0":
        config.optimizer.lr = 0.0
    return config


def run_arm(config_file: str, arm: str, seed: int, out: Path, before: dict, held_out) -> dict:
    """Trains and measures one arm, or reads what an earlier call left; the table of ``before_after.compare``."""
    from fastadv import Encoder, Trainer, load_config
    from fastadv.evaluation.before_after.before_after import compare, load_measurement, measure, save_measurement
    from fastadv.evaluation.before_after.text_attack import as_far_as_can_be

    folder = out / f"{arm.replace(' ', '-')}-seed{seed}"
    config = load_config(config_file)
    evaluation, missing = as_far_as_can_be(config.evaluation, config.encoder.pooling)
    measured = folder / "after.npz"
    if not measured.exists():
        config = arm_config(config_file, arm, seed, folder)
        Trainer(config).fit()
        encoder = Encoder.from_pretrained(str(folder / "model"))
        save_measurement(measure(encoder, evaluation, held_out, progress=True), measured)
    return compare(before, load_measurement(measured), evaluation, missing)


def measure_before(config_file: str, out: Path):
    """The untrained model's measurement, kept in ``out``, and the held-out sentences."""
    from fastadv import load_config
    from fastadv.engine.build import build_encoder
    from fastadv.evaluation.before_after.before_after import load_measurement, measure, save_measurement
    from fastadv.evaluation.before_after.held_out import load_held_out
    from fastadv.evaluation.before_after.text_attack import as_far_as_can_be

    config = load_config(config_file)
    encoder = build_encoder(config)
    evaluation, _ = as_far_as_can_be(config.evaluation, encoder.pooling)
    held_out = load_held_out(evaluation, encoder, config.data.field)
    path = out / "before.npz"
    if not path.exists():
        save_measurement(measure(encoder, evaluation, held_out, progress=True), path)
    return load_measurement(path), held_out


def markdown(results: dict[str, list[dict]]) -> str:
    """One row a quantity: each arm's mean over seeds, and in brackets the change's outermost bounds over seeds.

    Args:
        results: arm -> ``compare``'s table of each seed.
    """
    from fastadv.evaluation.before_after.results_table import row_label

    arms = list(results)
    lines = [
        "| | before | " + " | ".join(f"{arm}, seeds: {len(results[arm])} [change]" for arm in arms) + " |",
        "|---" + "|---:" * (1 + len(arms)) + "|",
    ]
    for number, row in enumerate(results[arms[0]][0]["rows"]):
        cells = [row_label(row), f"{row['before']:.3f}"]
        for arm in arms:
            rows = [table["rows"][number] for table in results[arm]]
            after = np.mean([r["after"] for r in rows])
            low, high = min(r["low"] for r in rows), max(r["high"] for r in rows)
            cells.append(f"{after:.3f} [{low:+.3f}, {high:+.3f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, list[dict]], path: Path) -> None:
    """retrieval@1 and centred cosine against the radius: before, and each arm's seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key in zip(axes, ("retrieval", "centred_cosine")):
        for color, (arm, tables) in zip(("C0", "C1", "C2"), results.items()):
            for seed, table in enumerate(tables):
                rows = [r for r in table["rows"] if r["key"].startswith(f"{key}@")]
                radii = [r["radius"] for r in rows]
                if seed == 0 and color == "C0":
                    axis.plot(radii, [r["before"] for r in rows], "k--", label="before")
                axis.plot(radii, [r["after"] for r in rows], color + "o-", alpha=0.7, label=arm if seed == 0 else None)
        axis.set(xlabel="radius of the attack, multiple of RMS(X)", ylabel=rows[0]["label"])
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--out", default="runs/quickstart-study")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    before, held_out = measure_before(arguments.config, out)
    results: dict[str, list[dict]] = {arm: [] for arm in ARMS}
    for seed in arguments.seeds:
        for arm in ARMS:
            # Nothing is learnt at rate 0, whatever the seed.
            if arm != "learning rate 0" or seed == arguments.seeds[0]:
                results[arm].append(run_arm(arguments.config, arm, seed, out, before, held_out))
                (out / "study.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = markdown(results)
    (out / "study.md").write_text(table, encoding="utf-8")
    plot(results, out / "study.png")
    print(table)


if __name__ == "__main__":
    main()

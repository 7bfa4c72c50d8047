"""What three steps of every shipped config leave: a hash of each exported weight, and the loss of each step.

    python -m bench.recorded_weights --out before.json                 # on one commit
    python -m bench.recorded_weights --out after.json --against before.json   # on another: exits 1 where one differs

A refactor is to leave all of it as it was. Every config trains the packaged MiniLM on the packaged film reviews, or on
texts made of them, with its own objective, search, optimizer and engine; a config that wants what no package has is
named and left out. Run it alone: the result depends on the number of threads
and on whether the C++ library is there, not on the load.
"""

import argparse
import csv
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
NUM_STEPS = 3
SYNONYMS = {"good": ["fine", "great"], "film": ["movie"], "bad": ["poor", "awful"], "story": ["plot"]}
ANTONYMS = {"good": ["bad"], "bad": ["good"], "great": ["awful"], "like": ["hate"], "best": ["worst"]}


def rows() -> list[tuple[str, int]]:
    """Eighty texts and their classes."""
    reviews = [("a good film with a great story , the best of the year", 1), ("a bad movie , the plot is awful", 0)]
    return [(f"{text} number {i}", label) for i in range(40) for text, label in reviews]


def write_labelled_pairs(folder: Path, label: str) -> Path:
    """Pairs of texts, every second one of the class ``label``."""
    with open(folder / "labelled_pairs.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "label"])
        for text, is_good in rows():
            writer.writerow((text, text.replace("film", "movie"), label if is_good else "other"))
    return folder / "labelled_pairs.csv"


def write_inputs(folder: Path) -> dict[str, Path]:
    """Labelled texts, an adversarial text of most of them, and word sets: what configs name and no package has."""
    with open(folder / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "label", "first_adversarial"])
        writer.writerows((text, label, text.replace("film", "flim").replace("plot", "polt")) for text, label in rows())
    with open(folder / "labelled.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows())
    with open(folder / "triplets.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sent0", "sent1", "hard_neg"])
        writer.writerows((text, text.replace("film", "movie"), text.replace("good", "bad")) for text, _ in rows())
    (folder / "sentences.txt").write_text("".join(f"{text}\n" for text, _ in rows()), encoding="utf-8")
    sets = {"format": "fastadv word sets 1", "synonyms": SYNONYMS, "antonyms": ANTONYMS}
    (folder / "word_sets.json").write_text(json.dumps(sets), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


def config_of(path: Path, inputs: dict[str, Path], folder: Path, victim: Path):
    """``path`` with the packaged encoder and small data in place of what it names; everything else is its own."""
    from fastadv import load_config

    config = load_config(str(path))
    config.encoder.model = "demo:minilm"
    config.encoder.max_length = min(config.encoder.max_length or 32, 32)
    config.data.cache_dir = str(folder / "cache")
    obstinate = config.objective_options.get("obstinate_labels")
    if config.data.label_field and obstinate:
        config.data.train, config.data.label_field = str(write_labelled_pairs(folder, obstinate[0])), "label"
        config.data.field, config.data.pair_field = "first", "second"
        config.objective_options["obstinate_labels"] = obstinate[:1]
    elif config.data.label_field:
        config.data.train, config.data.label_field = str(inputs["labelled"]), "label"
        config.data.field, config.data.pair_field = "text", None
    elif config.data.positive_field:
        config.data.train = str(inputs["triplets"])
    else:
        config.data.train = str(inputs["sentences"])
    config.data.max_sentences = 64
    if config.data.pairs is not None:
        config.data.pairs = str(inputs["pairs"])
    if config.data.word_sets is not None:
        config.data.word_sets = str(inputs["word_sets"])
    if config.objective_options.get("victim") is not None:
        config.objective_options["victim"] = str(victim)
    if config.objective_options.get("rtd_generator") is not None:
        config.objective_options["rtd_generator"] = "unigram"
    if config.engine.precision == "bf16" or config.engine.zero_stage:
        config.engine.precision, config.engine.zero_stage = "fp32", 0
    config.engine.attention, config.engine.kernels, config.engine.compile = "auto", "auto", "none"
    config.engine.num_threads = 2
    config.train.output_dir = str(folder / path.stem)
    config.train.batch_size, config.train.max_steps, config.train.micro_batch_size = 8, NUM_STEPS, None
    config.train.eval_every = config.train.save_every = None
    config.train.log_every = 1
    config.dev.data, config.dev.patience, config.evaluation.enabled = "none", None, False
    return config


def record(config) -> dict[str, str]:
    """Hashes and losses of the run of ``config``, by name."""
    import safetensors.torch

    from fastadv import Trainer

    run_folder = Trainer(config, writes_report=False).fit()
    found = {}
    for file in sorted((run_folder / "model").glob("**/*.safetensors")):
        for name, tensor in safetensors.torch.load_file(file).items():
            digest = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]
            found[f"{file.relative_to(run_folder)}:{name}"] = digest
    for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        if "loss" in values:
            found[f"loss of step {values['step']}"] = repr(values["loss"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--against", type=Path, help="what another commit wrote")
    parser.add_argument("--only", nargs="+", help="configs, by name")
    arguments = parser.parse_args()
    everything = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "inputs").mkdir()
        inputs = write_inputs(folder / "inputs")
        paths = sorted(CONFIGS.glob("*.yaml")) + sorted((CONFIGS / "papers").glob("*.yaml"))
        # The first one is the victim of those that want one.
        paths.sort(key=lambda path: path != CONFIGS / "fine_tuning.yaml")
        for path in paths:
            name = str(path.relative_to(CONFIGS).with_suffix(""))
            if arguments.only and name not in arguments.only:
                continue
            began = time.monotonic()
            own = folder / name.replace("/", "-")
            own.mkdir()
            try:
                config = config_of(path, inputs, own, folder / "fine_tuning" / "fine_tuning" / "model")
                everything[name] = record(config)
                remark = f"{len(everything[name])} values"
            except Exception as error:
                remark = f"left out: {str(error).splitlines()[0][:150]}"
            print(f"{name}: {remark}, {time.monotonic() - began:.1f} s", flush=True)
    arguments.out.write_text(json.dumps(everything, indent=1), encoding="utf-8")
    if arguments.against is None:
        return 0
    before = json.loads(arguments.against.read_text(encoding="utf-8"))
    differing = [name for name in before if everything.get(name) != before[name]]
    print(f"{len(before) - len(differing)} of {len(before)} configs are the same to the last bit")
    for name in differing:
        print(f"  {name}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())

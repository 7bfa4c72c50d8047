"""The tables of docs/scaling.md, from the cost model: ``python -m bench.pages.scaling_table --write docs/scaling.md``.

Each table stands in the page between a line ``<!-- table: NAME -->`` and a line ``<!-- end -->``; what is between them
is replaced. Without ``--write`` the tables are printed.
"""

import argparse
import dataclasses
import re
import tempfile
from pathlib import Path
from typing import Callable, Mapping

from bench.pages.model_sizes import DISTILLED, LARGE
from fastadv.config.schema import Config
from fastadv.data.batching import BatchOrder
from fastadv.data.text import TokenizedText
from fastadv.dry_run import UTILISATION, num_steps, seconds_a_step
from fastadv.launch.load import load_config
from fastadv.planning.cards import CARDS, LINKS
from fastadv.planning.costs import BatchSize, StepCosts
from fastadv.planning.memory import memory
from fastadv.planning.wire import bytes_sent, traffic

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "robustsentembed_roberta_large.yaml"
GIB, MIB, GB = 2**30, 2**20, 1e9


@dataclasses.dataclass(frozen=True)
class Setup:
    """A number of GPUs, and the batch it runs."""

    num_gpus: int
    batch_size: int
    card: str
    link: str


SETUPS = (
    Setup(1, 128, "a100", "nvlink3"),
    Setup(8, 128, "h100", "nvlink4"),
    Setup(8, 512, "h100", "nvlink4"),
    Setup(64, 512, "h100", "ib400"),
    Setup(64, 4096, "h100", "ib400"),
    Setup(1024, 16384, "h100", "ib400"),
)


def config_of(setup: Setup, **changes) -> Config:
    overrides = [f"--{key}={value}" for key, value in changes.items()]
    return load_config(str(CONFIG), [f"--train.batch_size={setup.batch_size}", *overrides])


def costs_of(config: Config) -> StepCosts:
    has_model = config.objective_options.get("rtd_generator", "none") not in ("none", "unigram")
    return StepCosts(config, LARGE, DISTILLED if has_model else None)


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def parameters() -> str:
    costs = costs_of(config_of(SETUPS[0]))
    rows = [
        ("embeddings of f", costs.encoder.embeddings.total),
        ("24 layers of f", costs.encoder.body.total),
        ("head", costs.head.total),
        ("discriminator D and its head", costs.discriminator.total),
        ("generator G, frozen, distilroberta-base", costs.num_generator_parameters),
        ("eta table V, no parameter", costs.encoder.vocab_size * costs.encoder.embedding_size),
    ]
    return markdown(["part", "million"], [[name, f"{count / 1e6:,.2f}"] for name, count in rows])


def runs() -> str:
    rows = []
    for setup in SETUPS:
        config = config_of(setup)
        costs, batch, n = costs_of(config), BatchSize.assumed(config), setup.num_gpus
        seconds = seconds_a_step(costs, batch, n, CARDS[setup.card], UTILISATION)
        sent = bytes_sent(traffic(costs, batch, n), n)
        sending = sent / (LINKS[setup.link][0] * GB)
        # What a sentence costs to compute does not depend on the batch, nor what a step sends on it but for the keys.
        break_even = sending / seconds * setup.batch_size / n
        step = seconds + sending
        one_epoch = dataclasses.replace(config.train, num_epochs=1)
        hours = [
            num_steps(dataclasses.replace(config, train=train), count) * step / 3600
            for train, count in ((config.train, 10**6), (one_epoch, 10**9))
        ]
        rows.append(
            [
                f"{n:,} {CARDS[setup.card].name.removeprefix('NVIDIA ')}",
                f"{setup.batch_size:,}",
                f"{memory(costs, batch, n).total / GIB:.1f}",
                f"{sum(costs.flops(batch).values()) / 1e12:,.0f}",
                f"{1e3 * seconds:,.0f}",
                f"{sent / MIB:,.0f}",
                f"{1e3 * sending:,.1f}",
                f"{break_even:,.1f}" if n > 1 else "",
                f"{hours[0]:,.2f}",
                f"{hours[1]:,.0f}",
            ]
        )
    columns = ["GPUs", "batch", "GiB a GPU", "TFLOP a step", "ms computing", "MiB sent", "ms sending"]
    columns += ["sentences a GPU where both are equal", "hours, 10⁶ × 4 passes", "hours, 10⁹ × 1 pass"]
    return markdown(columns, rows)


def stages() -> str:
    rows = []
    for n in (8, 64, 1024):
        setup = Setup(n, 16 * n, "h100", "ib400")
        for stage in range(4):
            config = config_of(setup, **{"engine.zero_stage": stage})
            costs, batch = costs_of(config), BatchSize.assumed(config)
            found = memory(costs, batch, n)
            numbers = (found.weights, found.gradients, found.optimizer, found.eta_table, found.buffers)
            parts = traffic(costs, batch, n)
            rows.append(
                [
                    f"{n:,} GPUs, stage {stage}",
                    *(f"{value / GIB:.2f}" for value in numbers),
                    f"{found.activations / GIB:.2f}",
                    f"{found.total / GIB:.2f}",
                    f"{bytes_sent(parts, n) / MIB:,.0f}",
                ]
            )
    columns = ["", "weights", "gradients", "optimizer", "V", "buffers", "activations", "GiB a GPU", "MiB sent"]
    return markdown(columns, rows)


def objectives() -> str:
    rows, setup = [], Setup(8, 128, "h100", "nvlink4")
    base = None
    for name, changes in (
        ("SimCSE", {"objective_options.rtd_generator": "none", "perturbation.reuse": "exact"}),
        ("RobustSentEmbed without RTD, adaptive", {"objective_options.rtd_generator": "none"}),
        ("RobustSentEmbed without RTD, exact", {"objective_options.rtd_generator": "none"}),
        ("RobustSentEmbed, exact", {}),
        ("RobustSentEmbed, exact, 12 layers frozen", {"encoder.num_frozen_layers": 12}),
        ("RobustSentEmbed, none (the reference)", {"perturbation.reuse": "none"}),
        ("RobustSentEmbed, free (FreeLB)", {"perturbation.reuse": "free"}),
    ):
        if "adaptive" in name:
            changes = {**changes, "perturbation.reuse": "adaptive"}
        config = config_of(setup, **changes)
        if name == "SimCSE":
            config.objective, config.objective_options = "simcse", {"temperature": 0.05, "head": "mlp"}
        costs, batch = costs_of(config), BatchSize.assumed(config)
        flops = sum(costs.flops(batch).values())
        base = base or flops
        sent = bytes_sent(traffic(costs, batch, 8), 8)
        rows.append([name, f"{flops / 1e12:.1f}", f"{flops / base:.2f}", f"{sent / MIB:,.0f}"])
    return markdown(["objective, reuse", "TFLOP a step", "of SimCSE's", "MiB sent"], rows)


def bytes_of_cached_sentence(num_sentences: int = 20_000) -> tuple[float, float]:
    """Bytes of the cache's file, and tokens, a sentence; lengths from 12 to 32, 22 on average."""
    lengths = [12 + 7 * i % 21 for i in range(num_sentences)]

    def tokenize(texts):
        numbers = [int(text) for text in texts]
        ids = [[(number * 31 + j) % 50_000 for j in range(lengths[number])] for number in numbers]
        return ids, [[j in (0, len(tokens) - 1) for j in range(len(tokens))] for tokens in ids]

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "text.txt"
        source.write_text("\n".join(map(str, range(num_sentences))) + "\n")
        text = TokenizedText.build(source, tokenize, "counted", 32, cache_dir=folder, progress=False)
        return text.path.stat().st_size / len(text), sum(lengths) / num_sentences


def data() -> str:
    cached, _ = bytes_of_cached_sentence()
    small = BatchOrder([22] * 1000, 10, seed=0)
    order = small.batches(0)._order.itemsize
    rows = []
    for count in (10**6, 10**9):
        rows.append(
            [
                f"{count:,}",
                f"{cached * count / GB:,.2f}",
                f"{order * count / GB:,.3f}",
                f"{8 * order * count / GB:,.2f}",
                f"{2 * order * count / GB:,.3f}",
                f"{-(-count // 8192):,}",
            ]
        )
    columns = ["sentences", "cache on disk, GB", "order of an epoch, GB a process", "GB a node of 8"]
    return markdown([*columns, "while it is made, GB a process", "record batches"], rows)


def checkpoints() -> str:
    """The parts of a checkpoint: weights, masters and AdamW's means, V."""
    rows = []
    for precision, stage in (("fp32", 0), ("bf16", 1)):
        config = config_of(SETUPS[1], **{"engine.precision": precision, "engine.zero_stage": stage})
        costs = costs_of(config)
        total, trained = costs.parameters.total, costs.parameters.trained
        weights = (2 if precision == "bf16" else 4) * total
        optimizer = (8 if stage == 0 else 12) * trained
        table = 4 * costs.encoder.vocab_size * costs.encoder.embedding_size
        all_of_it = weights + optimizer + table
        rows.append(
            [
                f"{precision}, stage {stage}",
                *(f"{value / GB:.2f}" for value in (weights, optimizer, table, all_of_it, 3 * all_of_it)),
            ]
        )
    columns = ["", "weights, GB", "optimizer, GB", "V, GB", "one checkpoint, GB", "two kept and one in the making, GB"]
    return markdown(columns, rows)


def cards() -> str:
    rows = []
    for key, card in CARDS.items():
        rates = [f"{rate:,.1f}" if rate is not None else "" for rate in (card.bf16, card.tf32, card.fp32)]
        rows.append([f"`{key}`", card.name, *rates, str(card.memory_gb), card.source])
    return markdown(["`--card`", "name", "bf16", "TF32", "fp32", "GB", "source"], rows)


def links() -> str:
    return markdown(
        ["`--link`", "GB/s each way", "what"], [[f"`{key}`", f"{rate:g}", what] for key, (rate, what) in LINKS.items()]
    )


TABLES: dict[str, Callable[[], str]] = {
    "parameters": parameters,
    "runs": runs,
    "stages": stages,
    "objectives": objectives,
    "data": data,
    "checkpoints": checkpoints,
    "cards": cards,
    "links": links,
}


def filled(page: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The page with every table it names made anew."""

    def table(found: re.Match) -> str:
        return f"<!-- table: {found[1]} -->\n{tables[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="PAGE", type=Path, help="replace the tables in this page")
    arguments = parser.parse_args()
    if arguments.write is None:
        for name, make in TABLES.items():
            print(f"\n{name}\n{make()}")
    else:
        arguments.write.write_text(filled(arguments.write.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The pages that set the papers' tables beside ours: ``python -m bench.pages.reproduce_page --write``.

Made of docs/papers.yaml (what the papers print), docs/reproductions.yaml (the commands), docs/measured.yaml (what was
measured here) and the cost model of ``--dry_run``. A page a paper is written whole; of docs/reproduce.md what stands
between ``<!-- table: NAME -->`` and ``<!-- end -->``. Without ``--write`` the names of changed pages are printed.
"""

import argparse
import functools
import shlex
from pathlib import Path
from typing import Callable, Optional

import yaml
from transformers import AlbertConfig, BertConfig, DebertaConfig, DistilBertConfig, RobertaConfig

from bench.pages.scaling_table import DISTILLED, LARGE, filled, markdown
from fastadv.config.schema import Config
from fastadv.dry_run import UTILISATION, num_steps, seconds_a_step
from fastadv.files.atomic_file import written_aside
from fastadv.planning.cards import CARDS
from fastadv.planning.costs import BatchSize, StepCosts
from fastadv.train import read_arguments

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = "reproduce.md"
HOURS_ON = ("v100", "a100", "h100")
# Systems of the tables that are not part of this project.
LEFT_OUT = ("GloVe", "Skip-thought", "IS-BERT", "-flow", "ConSERT", "ATCL", "ALUM", "InfoBERT", "ITPT", "the others")
ABLATIONS = (
    ("robustsentembed", ("figure_4", "figure_5", "table_5", "figure_6", "table_6")),
    ("taichi", ("figure_5",)),
    ("balanced_adversarial_training", ("figure_4", "table_4", "figure_10", "figure_11", "figure_12")),
)
_IN_ROW = {"scal_uscal": ("+ CL", "+ AT"), "taichi": ("without", "ADVERSARIAL")}

SHAPES = {
    "bert-base-uncased": BertConfig(),
    "bert-large-uncased": BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
    "distilbert-base-uncased": DistilBertConfig(),
    "roberta-base": RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
    "roberta-large": LARGE,
    "distilroberta-base": DISTILLED,
    "albert-base-v2": AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, hidden_dropout_prob=0.0
    ),
    "microsoft/deberta-base": DebertaConfig(
        vocab_size=50265, type_vocab_size=0, relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
}
"""what each model's makers say of its size"""


def read(name: str) -> dict:
    """A data file of docs/, every value as the text that stands there."""
    return yaml.load((DOCS / name).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def shape_of_model(name: str):
    # Runs that begin at an export of another have its shape, BERT-base's in all commands of these pages.
    return SHAPES["bert-base-uncased" if name.startswith("runs/") else name]


def costs_of(config: Config) -> StepCosts:
    generator = config.objective_options.get("rtd_generator", "none")
    victim = config.objective_options.get("victim")
    return StepCosts(
        config,
        shape_of_model(config.encoder.model),
        SHAPES[generator] if generator in SHAPES else None,
        None if victim is None else shape_of_model(victim),
    )


def config_of(command: str) -> Config:
    return read_arguments(shlex.split(command)[2:])[0]


@functools.lru_cache(maxsize=None)
def _cost(command: str, num_sentences: int, mean_length: Optional[float]) -> tuple[int, str, tuple[str, ...]]:
    """Steps, precision, and hours on each of HOURS_ON."""
    config = config_of(command)
    costs, batch = costs_of(config), BatchSize.assumed(config, mean_length)
    steps, hours = num_steps(config, num_sentences), []
    for card in HOURS_ON:
        seconds = seconds_a_step(costs, batch, 1, CARDS[card], UTILISATION)
        hours.append("no units" if seconds is None else f"{steps * seconds / 3600:,.2f}")
    return steps, config.engine.precision, tuple(hours)


def runs_table(runs: list[dict]) -> str:
    rows = []
    for run in runs:
        length = float(run["mean_length"]) if "mean_length" in run else None
        steps, precision, hours = _cost(run["command"], int(run["sentences"]), length)
        rows.append([run["name"], f"{int(run['sentences']):,}", f"{steps:,}", precision, *hours])
    return markdown(["run", "texts", "steps", "type", *(f"{CARDS[card].name}, h" for card in HOURS_ON)], rows)


def block(commands: list[tuple[Optional[str], str]]) -> str:
    """Commands as an indented block, each under what it is where that is given."""
    lines = []
    for name, command in commands:
        lines += [*([f"    # {name}"] if name else []), f"    {command}"]
    return "\n".join(lines)


def rar_parameters() -> dict[str, list[dict]]:
    """Table 7 of CARL and RAR, counted."""
    rows = {"ALBERT": "carl_rar_fine_tuning", "FreeLB": "carl_rar_freelb", "RAR": "rar"}
    config = {row: config_of(f"fastadv train --config configs/papers/{name}.yaml") for row, name in rows.items()}
    config["CARL"] = config_of("fastadv train --config configs/carl_printed.yaml")
    return {
        "table_7": [
            {"row": row, "values": {"count": str(costs_of(of).parameters.total)}, "where": "counted by this page"}
            for row, of in config.items()
        ]
    }


def table_of(printed: dict, measured: list[dict]) -> str:
    """The paper's rows, with what was done here beside each, and rows of ours below."""
    here = {found["row"]: found for found in measured}
    rows = []
    for name, values in printed["rows"].items():
        is_out = any(part in name for part in LEFT_OUT)
        found = here.pop(name, None)
        mine = "left out" if is_out else "not run here"
        if found is not None:
            mine = " ".join(found["values"].get(column, "-") for column in printed["columns"]) + f", {found['where']}"
        rows.append([name, *(value.replace("±", " ± ") for value in values.split()), mine])
    for found in here.values():
        values = [found["values"].get(column, "-") for column in printed["columns"]]
        rows.append([f"*{found['row']}*", *values, f"{found['where']}: {found['what']}"])
    return markdown(["", *printed["columns"], "here"], rows)


def _heading(key: str, title: str) -> str:
    kind, number = key.split("_")
    return f"## {kind.capitalize()} {number}: {title}"


def page_of(paper: str) -> str:
    """The whole page of a paper."""
    printed, how, ours = read("papers.yaml")[paper], read("reproductions.yaml")[paper], dict(read("measured.yaml"))
    measured = {**ours.get(paper, {}), **(rar_parameters() if paper == "carl_rar" else {})}
    parts = [
        f"# {printed['title']}",
        f"{', '.join(printed['authors'])} ({printed['year']}). Made by `python -m bench.pages.reproduce_page --write`; "
        f"how to read it, and how hours are estimated: [{INDEX}]({INDEX}).",
        "\n".join(f"* {remark}" for remark in how["remarks"]),
        "## What is trained",
        runs_table(how["runs"]),
        block([(run["name"], run["command"]) for run in how["runs"]]),
    ]
    for key, table in how["tables"].items():
        values = printed["tables"].get(key)
        parts.append(_heading(key, values["title"] if values else table["title"]))
        about = [f"{values['measures'][0].upper()}{values['measures'][1:]}." if values else "No numbers are printed."]
        about += [f"{note[0].upper()}{note[1:]}." for note in [(values or {}).get("note")] if note]
        parts.append(" ".join([*about, *([table["remark"]] if "remark" in table else [])]))
        parts.append(block([(None, command) for command in table["commands"]]))
        if values:
            parts.append(table_of(values, measured.get(key, [])))
    return "\n\n".join(parts) + "\n"


def papers() -> str:
    rows = []
    printed, how, ours = read("papers.yaml"), read("reproductions.yaml"), read("measured.yaml")
    for paper, about in printed.items():
        num_rows = sum(len(table["rows"]) for table in about["tables"].values())
        measured = {**ours.get(paper, {}), **(rar_parameters() if paper == "carl_rar" else {})}
        names = {key: {found["row"] for found in rows} for key, rows in measured.items()}
        num_run = sum(len(names[key] & set(about["tables"][key]["rows"])) for key in names)
        page = how[paper]["page"]
        rows.append(
            [f"[{about['title']}]({page})", about["year"], str(len(how[paper]["tables"])), str(num_rows), str(num_run)]
        )
    return markdown(["paper", "year", "tables and figures", "rows with numbers", "of these run here"], rows)


def ablations() -> str:
    printed, how = read("papers.yaml"), read("reproductions.yaml")
    commands = []
    for paper, words in _IN_ROW.items():
        for run in how[paper]["runs"]:
            if any(word in run["name"] for word in words):
                commands.append((f"{how[paper]['page']}: {run['name']}", run["command"]))
    for paper, keys in ABLATIONS:
        for key in keys:
            table = how[paper]["tables"][key]
            title = table.get("title") or printed[paper]["tables"][key]["title"]
            name = f"{how[paper]['page']}, {key.replace('_', ' ')}: {title}"
            commands += [(name if not number else None, command) for number, command in enumerate(table["commands"])]
    return "\n" + block(commands) + "\n"


TABLES: dict[str, Callable[[], str]] = {"papers": papers, "ablations": ablations}


def pages() -> dict[Path, str]:
    """Every page as it should stand."""
    found = {DOCS / how["page"]: page_of(paper) for paper, how in read("reproductions.yaml").items()}
    return {DOCS / INDEX: filled((DOCS / INDEX).read_text(encoding="utf-8"), TABLES), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the pages that have changed")
    arguments = parser.parse_args()
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        print(path.relative_to(ROOT))
        if arguments.write:
            with written_aside(path) as aside:
                aside.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

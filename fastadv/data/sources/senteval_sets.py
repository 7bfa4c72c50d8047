"""The labelled sets of SentEval in the folders it keeps them in: MR, CR, SUBJ, MPQA, SST2, TREC and MRPC.

A set is known by its files' names. MR, CR, SUBJ and MPQA have a file a class and no splits of their own: all rows are
``train``. Their empty lines (CR has four, MPQA three) are rows with the text ``.``, as SentEval encodes them: the
published numbers of rows count them. A line is UTF-8 where it can be, else Latin-1, in which the sets were published.
Empty lines of the other sets are passed over, and whatever else is wrong with a line stops the reading.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from fastadv.data.labelled.labels import LabelledRow, listed
from fastadv.data.sources.compressed import open_binary
from fastadv.data.sources.first_fault import FirstFault
from fastadv.data.sources.line_report import LineReport
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, raw_lines
from fastadv.data.sources.text_file import open_text, utf8_or_latin1
from fastadv.errors import UserError

_EMPTY = "."


@dataclass(frozen=True)
class _Layout:
    """How a set lies in its folder."""

    names: Tuple[str, ...]
    """the classes in their order"""
    files: Dict[str, Tuple[str, ...]]
    """split -> its files; of a set with a file a class, one for each of ``names``"""
    kind: str
    """how a line is laid out: class (all of it is text), sst, trec or mrpc"""
    num_texts: int = 1


LAYOUTS = {
    "MR": _Layout(("negative", "positive"), {"train": ("rt-polarity.neg", "rt-polarity.pos")}, "class"),
    "CR": _Layout(("negative", "positive"), {"train": ("custrev.neg", "custrev.pos")}, "class"),
    "SUBJ": _Layout(("objective", "subjective"), {"train": ("subj.objective", "subj.subjective")}, "class"),
    "MPQA": _Layout(("negative", "positive"), {"train": ("mpqa.neg", "mpqa.pos")}, "class"),
    "SST2": _Layout(
        ("negative", "positive"),
        {"train": ("sentiment-train",), "dev": ("sentiment-dev",), "test": ("sentiment-test",)},
        "sst",
    ),
    "TREC": _Layout(
        ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        {"train": ("train_5500.label",), "test": ("TREC_10.label",)},
        "trec",
    ),
    "MRPC": _Layout(
        ("not_equivalent", "equivalent"),
        {"train": ("msr_paraphrase_train.txt",), "test": ("msr_paraphrase_test.txt",)},
        "mrpc",
        num_texts=2,
    ),
}


class SentEvalSet:
    """A split of one of `LAYOUTS`, a `fastadv.data.labelled.find.LabelledSource`."""

    label_column = "label"

    def __init__(self, folder: Path, task: str, split: str):
        """
        Raises:
            UserError: no such split, or a file of it is not there.
        """
        self.layout = LAYOUTS[task]
        split = "dev" if split == "validation" else split
        if split not in self.layout.files:
            raise UserError(f"{folder} ({task}) has no split {split!r}; its splits are {', '.join(self.layout.files)}")
        self.name = f"{task}[{split}]"
        self.paths = [folder / file for file in self.layout.files[split]]
        for path in self.paths:
            if not path.is_file():
                raise UserError(
                    f"{path} is not there; SentEval's {task} ({split}) has {', '.join(p.name for p in self.paths)}"
                )
        self.given = self.layout.names
        self.text_columns = ("text",) if self.layout.num_texts == 1 else ("sentence1", "sentence2")

    def identity(self) -> Tuple[str, Optional[int]]:
        """A hash of all the content, and an upper bound on the number of rows."""
        digest, num_lines = hashlib.blake2b(digest_size=16), 0
        for path in self.paths:
            with open_binary(path) as file:
                data = file.read()
            digest.update(hashlib.blake2b(data, digest_size=16).digest())
            num_lines += data.count(b"\n") + 1
        return f"senteval-{self.name}-{digest.hexdigest()}", num_lines

    def rows(self, report: LineReport) -> Iterator[LabelledRow]:
        for i, path in enumerate(self.paths):
            fault, num_rows = FirstFault(path, ""), 0
            for line, where in _lines(path, report, fault, has_header=self.layout.kind == "mrpc"):
                if not line.strip() and self.layout.kind != "class":
                    report.note("blank", where)
                    continue
                texts, label = self._parsed(line, i, where, fault)
                for text, column in zip(texts, self.text_columns):
                    if not text.strip():
                        fault.note("blank", where, column)
                num_rows += 1
                report.num_sentences += 1
                yield LabelledRow(tuple(text.strip() for text in texts), label, path.name, where)
            if not num_rows:
                raise UserError(f"{path} holds no labelled row")

    def _parsed(self, line: str, which: int, where: str, fault: FirstFault) -> Tuple[List[str], str]:
        names, kind = self.layout.names, self.layout.kind
        if kind == "class":
            return [line if line.strip() else _EMPTY], names[which]
        if kind == "trec":
            label, _, text = line.strip().partition(" ")
            label = label.partition(":")[0]
            if label not in names:
                fault.fail(f"{where}, column label", f"the label {label!r} is unknown; known are {listed(names)}")
            return [text], label
        cells = line.split("\t")
        num_cells = 2 if kind == "sst" else 5
        if len(cells) != num_cells:
            fault.fail(where, f"{len(cells)} tab-separated cells; expected {num_cells}")
        number = (cells[1] if kind == "sst" else cells[0]).strip()
        if number not in ("0", "1"):
            fault.fail(f"{where}, column label", f"the label {number!r} is unknown; known are '0', '1'")
        return [cells[0]] if kind == "sst" else cells[3:], names[int(number)]


def senteval_set(folder: Path, split: str) -> Optional[SentEvalSet]:
    """The set that lies in ``folder``, or in its subfolder ``binary`` as SST2 does; None where there is none.

    Raises:
        UserError: a set without the split, or without one of its files.
    """
    for place in (folder, folder / "binary"):
        for task, layout in LAYOUTS.items():
            if any((place / file).is_file() for files in layout.files.values() for file in files):
                return SentEvalSet(place, task, split)
    return None


def _lines(path: Path, report: LineReport, fault: FirstFault, has_header: bool) -> Iterator[Tuple[str, str]]:
    with open_text(path) as (file, line_end):
        for number, line in enumerate(raw_lines(file, line_end, MAX_BYTES_PER_LINE), start=1):
            if number == 1 and has_header:
                continue
            report.num_lines += 1
            where = f"{path.name}:{number}"
            if line is None:
                fault.note("too_long", where)
            else:
                yield utf8_or_latin1(line), where

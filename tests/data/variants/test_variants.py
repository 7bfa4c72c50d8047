"""Other texts of training texts: which they are, in which batches, and what is refused."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

from fastadv.config.schema import Config
from fastadv.data.variants.substitution import antonym_draw, draw_seed, synonym_draw
from fastadv.data.variants.text_pairs import PAIR_COLUMNS, read_pairs, write_pairs
from fastadv.data.variants.word_sets import WordSets
from fastadv.encoder import Encoder
from fastadv.engine.training_data import TrainingData
from fastadv.errors import UserError
from fastadv.objectives.needs import Needs

SETS = WordSets(
    {"good": ("great", "wonderful"), "film": ("movie",), "slow": ("dull",)}, {"good": ("bad",), "slow": ("sharp",)}, {}
)
ROWS = (
    ("the film was good .", "a"),
    ("the plot was slow", "b"),
    ("never", "c"),
    ("this movie is sad", "d"),
    ("good film , good plot", "a"),
    ("the music", "b"),
    ("it was slow and good", "c"),
)


@pytest.fixture
def make(tmp_path, tiny_bert_dir):
    """``make(("fickle",), **changes of data)``: training data whose batches bring these variants."""
    lines = "\n".join(f"{text}\t{label}" for text, label in ROWS)
    (tmp_path / "train.tsv").write_text(f"text\tlabel\n{lines}\n")
    SETS.save(tmp_path / "sets.json")
    encoder = Encoder.from_pretrained(str(tiny_bert_dir))

    def make(names, seed=0, **changes):
        config = Config()
        config.data.train, config.data.label_field = str(tmp_path / "train.tsv"), "label"
        config.data.cache_dir, config.train.batch_size, config.train.seed = str(tmp_path / "cache"), 3, seed
        for key, value in changes.items():
            setattr(config.data, key, value)
        data = TrainingData(config, encoder, progress=False)
        data.use_variants(SimpleNamespace(needs=Needs(variants=names)), encoder)
        return data, encoder

    return make, tmp_path


def tokens_of(batch):
    return [part.tolist() for part in batch.input_ids.split(batch.lengths.tolist())]


def test_draws_are_those_of_seed_epoch_and_sentence(make):
    make, folder = make
    data, encoder = make(("fickle", "obstinate"), seed=5, word_sets=str(folder / "sets.json"))
    seen, differs = {}, False
    for epoch in range(3):
        for batch in data.batches(epoch, 0):
            for name, draw in (("fickle", synonym_draw), ("obstinate", antonym_draw)):
                variant = batch.variants[name]
                rows = zip(batch.row_ids.tolist(), tokens_of(variant), variant.is_present.tolist(), strict=True)
                for row, tokens, is_present in rows:
                    texts = (ROWS[row][0],)
                    expected = draw(texts, SETS, draw_seed(5, epoch, texts, name))
                    assert is_present == (expected is not None)
                    assert tokens == encoder.tokenize(expected or texts)[0][0]
                    differs |= seen.setdefault((name, row), tokens) != tokens
    assert differs and len(seen) == 2 * len(ROWS)
    assert not data.first_batch().variants


def test_only_what_is_asked_for_is_there(make):
    make, folder = make
    for names in (("fickle",), ("obstinate",)):
        data, _ = make(names, word_sets=str(folder / "sets.json"))
        assert all(tuple(batch.variants) == names for batch in data.batches(0, 0))


def test_loader_processes_bring_the_same(make):
    make, folder = make
    batches = []
    for num_workers in (0, 2):
        data, _ = make(("fickle", "obstinate"), word_sets=str(folder / "sets.json"), num_workers=num_workers)
        batches.append([tokens_of(v) for batch in data.batches(1, 0) for v in batch.variants.values()])
    assert batches[0] == batches[1]


def test_pairs_are_found_by_their_texts(make):
    make, folder = make
    pairs = {("the plot was slow",): ("the plot was dull",), ("never",): ("nevr",), ("not there",): ("no",)}
    write_pairs(folder / "pairs.csv", pairs, dict.fromkeys(pairs, "b"))
    assert (folder / "pairs.csv").read_text().splitlines()[0] == '"first","label","first_adversarial"'
    assert read_pairs(folder / "pairs.csv") == pairs
    data, encoder = make(("adversarial",), pairs=str(folder / "pairs.csv"))
    num_present = 0
    for batch in data.batches(0, 0):
        variant = batch.variants["adversarial"]
        for row, tokens, is_present in zip(batch.row_ids.tolist(), tokens_of(variant), variant.is_present.tolist()):
            texts = (ROWS[row][0],)
            assert is_present == (texts in pairs) and tokens == encoder.tokenize(pairs.get(texts, texts))[0][0]
            num_present += is_present
    assert num_present == 2


@pytest.mark.parametrize("text", ['"quoted", and\nbroken\r', "half a pair \ud83d", "a\tb", "é 字 🎬"])
def test_any_text_survives_the_file(tmp_path, text):
    pairs = {(text,): (text + "!",), (text, text): ("x", text)}
    write_pairs(tmp_path / "pairs.csv", pairs, dict.fromkeys(pairs, "b"))
    header = (tmp_path / "pairs.csv").read_bytes().partition(b"\n")[0].decode()
    assert header == ",".join(f'"{name}"' for name in PAIR_COLUMNS)
    expected = {tuple(map(as_read, texts)): tuple(map(as_read, found)) for texts, found in pairs.items()}
    assert read_pairs(tmp_path / "pairs.csv") == expected


def as_read(text):
    """As every reader has half a surrogate pair, so that a text is the one that was read before."""
    return text.replace("\ud83d", "\ufffd")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_pairs_are_read_as_any_table_is(tmp_path, encoding):
    pairs = {("a" * 300_000,): ("é" * 400_000,), ("b", "c"): ("d", "c")}
    write_pairs(tmp_path / "pairs.csv", pairs, dict.fromkeys(pairs, "x"))
    content = (tmp_path / "pairs.csv").read_text(encoding="utf-8")
    (tmp_path / "pairs.csv").write_text(content, encoding=encoding)
    # As a process has it that read no other table before.
    csv.field_size_limit(128 << 10)
    assert read_pairs(tmp_path / "pairs.csv") == pairs


def test_unpaired_texts_may_be_left_out(make):
    make, folder = make
    pairs = {(ROWS[row][0],): ("dull",) for row in (1, 2, 4, 6)}
    write_pairs(folder / "pairs.csv", pairs, dict.fromkeys(pairs, "b"))
    whole, _ = make(("adversarial",), pairs=str(folder / "pairs.csv"))
    data, _ = make(("adversarial",), pairs=str(folder / "pairs.csv"), unpaired="drop")
    assert len(data.text) == 4 and data.order.batches_per_epoch == 2 and data.fingerprint != whole.fingerprint
    np.testing.assert_array_equal(data.text.labels, whole.text.labels[[1, 2, 4, 6]])
    np.testing.assert_array_equal(data.text.lengths, np.asarray(whole.text.lengths)[[1, 2, 4, 6]])
    rows = []
    for batch in data.batches(0, 0):
        assert batch.variants["adversarial"].is_present.all()
        rows += batch.row_ids.tolist()
        assert tokens_of(batch) == [list(whole.text[[1, 2, 4, 6][row]]["input_ids"]) for row in batch.row_ids.tolist()]
    assert sorted(rows) == [0, 1, 2, 3]


def test_left_out_texts_keep_the_weights_of_sources(make):
    make, folder = make
    other = folder / "other.tsv"
    other.write_text("text\tlabel\nthe music is good\ta\nthis is dull\tb\nevery one\tc\n")
    found = [ROWS[1][0], ROWS[2][0], "this is dull"]
    pairs = {(text,): ("dull",) for text in found}
    write_pairs(folder / "pairs.csv", pairs, dict.fromkeys(pairs, "b"))
    sources = [{"path": str(folder / "train.tsv"), "weight": 1}, {"path": str(other), "weight": 3}]
    data, _ = make(("adversarial",), train=sources, pairs=str(folder / "pairs.csv"), unpaired="drop")
    assert data.order.parts == [(2, 1.0), (1, 3.0)]
    drawn = sorted(row for batch in data.batches(0, 0) for row in batch.row_ids.tolist())
    assert drawn == [0, 1, 2, 2, 2]


def test_other_word_sets_and_pairs_are_another_run(make):
    make, folder = make
    WordSets({"good": ("great",)}, {}, {}).save(folder / "other.json")
    prints = {make(("fickle",))[0].fingerprint}
    prints |= {make(("fickle",), word_sets=str(folder / name))[0].fingerprint for name in ("sets.json", "other.json")}
    for number in range(2):
        write_pairs(folder / "pairs.csv", {("never",): (f"x{number}",)}, {("never",): "c"})
        prints.add(make(("adversarial",), pairs=str(folder / "pairs.csv"))[0].fingerprint)
    assert len(prints) == 5


@pytest.mark.parametrize(
    "text, message",
    [
        ("first,label\na,b\n", "no column first_adversarial; expected first, second, label"),
        ("first,first_adversarial\n", "holds no pair"),
        ("first,first_adversarial\na,b\n,c\n", "pairs.csv row 3, column first: blank"),
        ("first,second,first_adversarial,second_adversarial\na,b,c,\n", "pairs.csv row 2: a text is missing"),
        ("first,first_adversarial\nnowhere,c\n", "none of the 1 pairs of .* is of a training text"),
        (
            'first,first_adversarial\n"a,b\n',
            "pairs.csv row 2: a row that is not readable as CSV, or whose quote is never closed",
        ),
        ("first,first_adversarial\na,b,c\n", "pairs.csv row 2, 3 cells for 2 columns"),
        ("", "holds no pair"),
        (None, "pairs.csv cannot be read: No such file"),
    ],
)
def test_what_is_no_file_of_pairs_is_refused(make, text, message):
    make, folder = make
    if text is not None:
        (folder / "pairs.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        make(("adversarial",), pairs=str(folder / "pairs.csv"))

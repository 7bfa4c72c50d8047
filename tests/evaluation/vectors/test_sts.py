"""STS evaluation: file rules, errors that name file and row, and the published MiniLM scores where the data lie."""

import os

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fastadv.errors import UserError
from fastadv.evaluation.vectors.scored_pairs import read_scored_pairs, read_sts_benchmark, read_sts_year
from fastadv.evaluation.vectors.sts import STS_SETS, evaluate_sts, pairs_spearman, sts_table

SENTEVAL = os.environ.get("FASTADV_SENTEVAL")


class LetterEncoder:
    """Vectors that count letters; remembers what it was asked to encode."""

    def __init__(self):
        self.asked = []

    def encode_texts(self, texts, batch_size=64, progress=False):
        self.asked += texts
        return np.array([[text.count(letter) for letter in "abcde"] for text in texts], dtype=np.float32)


SENTENCES = ["aab", "abc", "cde", "dde", "abcde", "bb"]


def rows_of_pairs():
    return [
        (a, b, round(5 * abs(i - j) / 5, 3)) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES) if i < j
    ]


def write_senteval(folder):
    """Every set in SentEval's layout, of the same 15 pairs; STS15 has an unscored row, STS16 source columns."""
    pairs = rows_of_pairs()
    for year in STS_SETS[:5]:
        year_folder = folder / "STS" / f"{year}-en-test"
        year_folder.mkdir(parents=True)
        for name, part in (("a", pairs[:7]), ("b", pairs[7:])):
            extra = "\tsource\tsource" if year == "STS16" else ""
            inputs = [f"{a}\t{b}{extra}" for a, b, _ in part]
            scores = [str(score) for _, _, score in part]
            if year == "STS15":
                inputs, scores = [*inputs, "unscored\tpair"], [*scores, ""]
            (year_folder / f"STS.input.{name}.txt").write_text("\n".join(inputs) + "\n")
            (year_folder / f"STS.gs.{name}.txt").write_text("\n".join(scores) + "\n")
    benchmark = folder / "STS" / "STSBenchmark"
    benchmark.mkdir()
    for split in ("dev", "test"):
        lines = [f"main\tfile\t2012\t{i}\t{score}\t{a}\t{b}" for i, (a, b, score) in enumerate(pairs)]
        (benchmark / f"sts-{split}.csv").write_text("\n".join(lines) + "\n")
    (folder / "SICK").mkdir()
    lines = [f"{i}\t{a}\t{b}\t{score}\tNEUTRAL" for i, (a, b, score) in enumerate(pairs)]
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    (folder / "SICK" / "SICK_test_annotated.txt").write_bytes("\r\n".join([header, *lines, ""]).encode())
    return folder


def expected_spearman(pairs):
    vectors = LetterEncoder().encode_texts(SENTENCES).astype(np.float64)
    unit = {s: v / np.linalg.norm(v) for s, v in zip(SENTENCES, vectors)}
    return 100 * spearmanr([unit[a] @ unit[b] for a, b, _ in pairs], [score for _, _, score in pairs]).statistic


def test_seven_sets_their_mean_and_each_sentence_once(tmp_path):
    encoder = LetterEncoder()
    scores = evaluate_sts(encoder, write_senteval(tmp_path))
    assert list(scores) == [*STS_SETS, "mean"]
    assert scores == pytest.approx(dict.fromkeys(scores, expected_spearman(rows_of_pairs())), abs=1e-9)
    assert sorted(encoder.asked) == sorted(SENTENCES)
    assert sts_table(scores).splitlines()[0].split() == [*STS_SETS, "mean"]


def test_a_choice_of_sets_and_dev(tmp_path):
    write_senteval(tmp_path)
    scores = evaluate_sts(LetterEncoder(), tmp_path, sets=["SICK-R", "STS13"])
    assert list(scores) == ["SICK-R", "STS13", "mean"]
    assert pairs_spearman(LetterEncoder(), read_sts_benchmark(tmp_path, "dev")) == pytest.approx(
        expected_spearman(rows_of_pairs()), abs=1e-9
    )
    with pytest.raises(UserError, match="'STS17'.*STS12, STS13"):
        evaluate_sts(LetterEncoder(), tmp_path, sets=["STS17"])


def test_2013_is_read_without_smt(tmp_path):
    write_senteval(tmp_path)
    year = tmp_path / "STS" / "STS13-en-test"
    (year / "STS.input.SMT.txt").write_text("x\ty\n")
    (year / "STS.gs.SMT.txt").write_text("1\n")
    assert len(read_sts_year(tmp_path, "STS13")) == 15


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("STS/STS12-en-test/STS.input.a.txt", "one sentence only\n" * 7, r"STS\.input\.a\.txt:1: 1 tab"),
        ("STS/STS12-en-test/STS.gs.b.txt", "1\n2\n", r"STS\.input\.b\.txt has 8 rows, but .*STS\.gs\.b\.txt has 2"),
        ("STS/STS14-en-test/STS.gs.a.txt", "1\n2\n3\nfour\n5\n1\n2\n", r"STS\.gs\.a\.txt:4: .*'four'"),
        ("STS/STSBenchmark/sts-test.csv", "a\tb\tc\td\tnan\tx\ty\n", r"sts-test\.csv:1: .*'nan'"),
        ("SICK/SICK_test_annotated.txt", "h\th\th\th\n1\tx\ty\n", r"SICK_test_annotated\.txt:2: 3 tab"),
        ("SICK/SICK_test_annotated.txt", "h\th\th\th\n", "no scored pair"),
    ],
)
def test_errors_name_file_and_row(tmp_path, file, content, message):
    (write_senteval(tmp_path) / file).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        evaluate_sts(LetterEncoder(), tmp_path)
    assert "\n" not in str(error.value)


def test_missing_sets_are_named(tmp_path):
    write_senteval(tmp_path)
    (tmp_path / "STS" / "STSBenchmark" / "sts-dev.csv").unlink()
    with pytest.raises(UserError, match="STS-B dev is not there"):
        pairs_spearman(LetterEncoder(), read_sts_benchmark(tmp_path, "dev"))
    for path in (tmp_path / "STS" / "STS12-en-test").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="STS12 is not there: .*; --sets STS13 STS14 STS15 STS16 STS-B SICK-R measures"):
        evaluate_sts(LetterEncoder(), tmp_path)
    (tmp_path / "SICK" / "SICK_test_annotated.txt").unlink()
    with pytest.raises(UserError, match=r"STS12 is not there: .* \(nor is SICK-R\); --sets STS13 .* STS-B measures"):
        evaluate_sts(LetterEncoder(), tmp_path)
    with pytest.raises(UserError, match="no folder"):
        evaluate_sts(LetterEncoder(), tmp_path / "nowhere")


def test_bytes_that_are_not_utf8_are_named_by_row(tmp_path):
    path = write_senteval(tmp_path) / "STS" / "STS12-en-test" / "STS.input.a.txt"
    path.write_bytes(b"a\tb\nc\xff\td\n")
    with pytest.raises(UserError, match=r"STS\.input\.a\.txt:2: text that is not UTF-8"):
        evaluate_sts(LetterEncoder(), tmp_path, sets=["STS12"])


def test_scored_pairs_of_a_user(tmp_path):
    pairs = rows_of_pairs()
    files = {
        "pairs.csv": "score,sentence2,sentence1\r\n" + "".join(f'{s},"{b}",{a}\r\n' for a, b, s in pairs),
        "pairs.tsv": "sentence1\tsentence2\tscore\tnote\n" + "".join(f"{a}\t{b}\t{s}\tx\n" for a, b, s in pairs),
        "pairs.jsonl": "".join(f'{{"sentence1": "{a}", "sentence2": "{b}", "score": {s}}}\n\n' for a, b, s in pairs),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode())
        score = pairs_spearman(LetterEncoder(), read_scored_pairs(tmp_path / name))
        assert score == pytest.approx(expected_spearman(pairs), abs=1e-9)


def test_broken_and_constant_vectors(tmp_path):
    write_senteval(tmp_path)

    class Constant(LetterEncoder):
        def encode_texts(self, texts, **options):
            return np.ones((len(texts), 1), dtype=np.float32)

    class Broken(LetterEncoder):
        def encode_texts(self, texts, **options):
            return np.full((len(texts), 3), np.nan, dtype=np.float32)

    assert np.isnan(pairs_spearman(Constant(), read_sts_benchmark(tmp_path, "dev")))
    with pytest.raises(UserError, match="NaN or infinity for 6 of 6"):
        pairs_spearman(Broken(), read_sts_benchmark(tmp_path, "dev"))


@pytest.mark.skipif(SENTEVAL is None, reason="FASTADV_SENTEVAL names no folder of SentEval's data")
def test_published_minilm_scores(minilm_dir):
    from fastadv.encoder import Encoder

    torch.set_num_threads(2)
    encoder = Encoder.from_pretrained(str(minilm_dir), pooling="mean", max_length=256)
    scores = evaluate_sts(encoder, SENTEVAL)
    published = {
        "STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS15": 85.39, "STS16": 78.99, "STS-B": 82.03, "SICK-R": 77.15
    }  # fmt: skip
    assert {name: scores[name] for name in published} == pytest.approx(published, abs=0.05)
    assert scores["mean"] == pytest.approx(np.mean(list(published.values())), abs=0.05)

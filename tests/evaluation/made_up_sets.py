"""SentEval's folders of made-up text, and an encoder that counts letters, for which they are hard but not hopeless."""

import numpy as np

LETTERS = "abcdefghij"
CLASS_FILES = {
    "MR": ("rt-polarity.neg", "rt-polarity.pos"),
    "CR": ("custrev.neg", "custrev.pos"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.neg", "mpqa.pos"),
}
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


class LetterEncoder:
    """Vectors (N, 10) that count letters, of uneven scale; remembers what it was asked to encode."""

    def __init__(self):
        self.asked = []

    def encode_texts(self, texts, batch_size=64, progress=False):
        self.asked += texts
        counts = np.array([[text.count(letter) for letter in LETTERS] for text in texts], dtype=np.float32)
        return counts * np.linspace(0.02, 0.6, len(LETTERS), dtype=np.float32)

    def encode(self, texts, **options):
        """As sentence-transformers calls it."""
        return LetterEncoder.encode_texts(LetterEncoder(), list(texts))


def sentence(draw, number, num_classes):
    """Words of letters; a class leans to its own, weakly. The number makes no two sentences equal."""
    weights = 1 + 0.8 * (np.arange(len(LETTERS)) % num_classes == number)
    letters = draw.choice(list(LETTERS), size=draw.integers(15, 40), p=weights / weights.sum())
    return "".join(letters[:7]) + " " + "".join(letters[7:]) + f" {draw.integers(10**9)}"


def write_sets(folder, names, num_rows=40, seed=0):
    """The named sets in SentEval's layout, ``num_rows`` of each class in each split."""
    draw = np.random.default_rng(seed)
    for name in names:
        if name in CLASS_FILES:
            (folder / name).mkdir(parents=True)
            for number, file in enumerate(CLASS_FILES[name]):
                rows = [sentence(draw, number, 2) for _ in range(num_rows - 5 * number)]
                (folder / name / file).write_text("\n".join(rows) + "\n", encoding="latin-1")
        elif name == "SST-2":
            place = folder / "SST" / "binary"
            place.mkdir(parents=True)
            for split in ("train", "dev", "test"):
                rows = [f"{sentence(draw, i % 2, 2)}\t{i % 2}" for i in range(2 * num_rows)]
                (place / f"sentiment-{split}").write_text("\n".join(rows) + "\n")
        elif name == "TREC":
            (folder / name).mkdir(parents=True)
            for file in ("train_5500.label", "TREC_10.label"):
                rows = [f"{TREC_CLASSES[i % 6]}:kind {sentence(draw, i % 6, 6)}" for i in range(6 * num_rows)]
                (folder / name / file).write_text("\n".join(rows) + "\n")
        else:
            (folder / name).mkdir(parents=True)
            for split in ("train", "test"):
                rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
                for i in range(2 * num_rows):
                    first = sentence(draw, draw.integers(2), 2)
                    # A paraphrase has some of its letters exchanged, another pair has no more in common than that.
                    second = first.replace("a", "b") if i % 3 else sentence(draw, draw.integers(2), 2)
                    second = second.replace("c", "d") if draw.random() < 0.5 else second[::-1].replace("j", "gh")
                    rows.append(f"{int((i % 3 > 0) == (draw.random() < 0.9))}\t1\t2\t{first}\t{second}")
                (folder / name / f"msr_paraphrase_{split}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    return folder


def write_sts_benchmark(folder, num_pairs=60, split="test", seed=0):
    """STS-B in SentEval's layout out of a small vocabulary; scores from 0 to 5, a third of them above 4."""
    draw = np.random.default_rng(seed)
    words = "the film was not very good a wonderful story it is dull actor great plot slow ending never".split()
    rows = []
    for i in range(num_pairs):
        first = list(draw.choice(words, size=6))
        second = [*first[:5], draw.choice(words)] if i % 3 == 0 else list(draw.choice(words, size=6))
        score = 4.2 + 0.2 * (i % 4) if i % 3 == 0 else (i % 5) * 0.9
        rows.append(f"main\tfile\t2012\t{i}\t{score:.2f}\t{' '.join(first)}\t{' '.join(second)}")
    (folder / "STS" / "STSBenchmark").mkdir(parents=True, exist_ok=True)
    (folder / "STS" / "STSBenchmark" / f"sts-{split}.csv").write_text("\n".join(rows) + "\n")
    return folder

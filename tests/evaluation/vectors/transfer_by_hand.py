"""Transfer scores written apart from the package: sentence-transformers makes the vectors, scikit-learn the scores.

It shares no code with `fastadv`: it reads SentEval's files itself, pools through sentence-transformers' own modules,
and leaves the search for C to scikit-learn. `test_transfer_minilm.py` holds `transfer_results` against it. By itself:

    python tests/evaluation/vectors/transfer_by_hand.py SENTEVAL_DIR MODEL_DIR [SET ...]
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

SEED = 1111
NUM_FOLDS = 10
TOLERANCE = 1e-6
CLASS_FILES = {
    "MR": ("MR/rt-polarity.neg", "MR/rt-polarity.pos"),
    "CR": ("CR/custrev.neg", "CR/custrev.pos"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.neg", "MPQA/mpqa.pos"),
}
SETS = (*CLASS_FILES, "SST-2", "MRPC", "TREC")


def lines(path):
    return [line.rstrip("\r") for line in path.read_bytes().decode("latin-1").removesuffix("\n").split("\n")]


def read(folder, name):
    """split -> (texts or pairs of texts, labels)"""
    if name in CLASS_FILES:
        parts = [lines(folder / file) for file in CLASS_FILES[name]]
        # SentEval gives the encoder a full stop where a line is empty.
        texts = [text if text.strip() else "." for part in parts for text in part]
        return {"train": (texts, [label for label, part in enumerate(parts) for _ in part])}
    if name == "SST-2":
        splits = {}
        for split in ("train", "dev", "test"):
            rows = [line.split("\t") for line in lines(folder / "SST/binary" / f"sentiment-{split}")]
            splits[split] = [row[0] for row in rows], [int(row[1]) for row in rows]
        return splits
    if name == "TREC":
        splits = {}
        for split, file in (("train", "train_5500.label"), ("test", "TREC_10.label")):
            rows = [line.split(" ", 1) for line in lines(folder / "TREC" / file)]
            splits[split] = [row[1] for row in rows], [row[0].split(":")[0] for row in rows]
        return splits
    splits = {}
    for split in ("train", "test"):
        text = (folder / "MRPC" / f"msr_paraphrase_{split}.txt").read_text("utf-8-sig")
        rows = [line.split("\t") for line in text.strip("\n").split("\n")[1:]]
        splits[split] = [(row[3], row[4]) for row in rows], [int(row[0]) for row in rows]
    return splits


def load_model(folder, max_length=128):
    """The model without its last step, which would bring vectors to length 1: SentEval takes them raw."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model = SentenceTransformer(modules=[model[0], model[1]], device="cpu")
    model.max_seq_length = max_length
    return model


def features(model, texts):
    if isinstance(texts[0], tuple):
        u, v = (model.encode(list(side), batch_size=64, show_progress_bar=False) for side in zip(*texts))
        return np.hstack([np.abs(u - v), u * v])
    return model.encode(texts, batch_size=64, show_progress_bar=False)


def fit(x, y, strengths, folds):
    with warnings.catch_warnings():
        # Of what scikit-learn will rename; that it did not converge would still be said.
        warnings.simplefilter("ignore", FutureWarning)
        return LogisticRegressionCV(Cs=strengths, cv=folds, scoring="accuracy", tol=TOLERANCE, max_iter=5000).fit(x, y)


def score(splits):
    """Accuracy and F1 of class 1 (nan where there are more classes), both × 100, of split -> (features, labels)."""
    folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=SEED)
    x, y = (np.asarray(part) for part in splits["train"])
    if set(splits) == {"train"}:
        strengths = [0.25, 0.5, 1, 2, 4, 8]
        rights = [
            np.mean(fit(x[train], y[train], strengths, folds).predict(x[test]) == y[test])
            for train, test in folds.split(x, y)
        ]
        return 100 * np.mean(rights), float("nan")
    test_x, test_y = (np.asarray(part) for part in splits["test"])
    if "dev" in splits:
        # One fold, whose training part is train and whose test part is dev, then a fit on train alone.
        dev_x, dev_y = (np.asarray(part) for part in splits["dev"])
        both = np.vstack([x, dev_x]), np.concatenate([y, dev_y])
        cut = [(np.arange(len(x)), np.arange(len(x), len(both[0])))]
        best = float(np.ravel(fit(*both, [0.25, 0.5, 1, 2, 4, 8], cut).C_)[0])
        model = fit(x, y, [best], [(np.arange(len(x)), np.arange(len(x)))])
    else:
        model = fit(x, y, [0.5, 1, 2, 4, 8, 16, 32], folds)
    guessed = model.predict(test_x)
    f1 = 100 * f1_score(test_y, guessed) if len(set(y.tolist())) == 2 else float("nan")
    return 100 * np.mean(guessed == test_y), f1


def scores(folder, model, names=SETS):
    """set -> (accuracy, F1, seconds)"""
    result = {}
    for name in names:
        start = time.perf_counter()
        splits = {split: (features(model, texts), y) for split, (texts, y) in read(Path(folder), name).items()}
        result[name] = (*score(splits), time.perf_counter() - start)
        print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    print(json.dumps(scores(sys.argv[1], load_model(sys.argv[2]), sys.argv[3:] or SETS), indent=1))

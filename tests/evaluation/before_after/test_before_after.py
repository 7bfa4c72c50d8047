"""The table before → after: what each row counts, equality where nothing changed, and the sentences it is made on."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fastadv.config.schema import EvaluationConfig
from fastadv.data.packing import PackedBatch
from fastadv.encoder import Encoder
from fastadv.errors import UserError
from fastadv.evaluation.before_after.before_after import (
    compare,
    load_measurement,
    measure,
    save_measurement,
)
from fastadv.evaluation.before_after.held_out import HeldOut, draw_distinct, load_held_out
from fastadv.evaluation.before_after.results_table import markdown_table, text_table, verdict

SUBJECTS = ("the film", "this movie", "that story", "one actor", "every scene", "the plot")
OPINIONS = ("was good", "was bad", "is very dull", "is wonderful", "was almost sad", "is not sharp")
TEXTS = [f"{subject} {opinion}" for subject in SUBJECTS for opinion in OPINIONS]
LABELS = [int(opinion in ("was good", "is wonderful", "is not sharp")) for _ in SUBJECTS for opinion in OPINIONS]


HELD_OUT = HeldOut(TEXTS[:24], probe_train=(TEXTS, LABELS), probe_test=(TEXTS[8:24], LABELS[8:24]))


def settings():
    return EvaluationConfig(enabled=True, num_sentences=24, radii=[0.2, 0.6], num_steps=3, num_probe_sentences=16)


@pytest.fixture
def cfg():
    return settings()


@pytest.fixture(scope="module")
def measured(tiny_bert_dir):
    """What `HELD_OUT` gives on the tiny encoder."""
    torch.set_num_threads(1)
    encoder = Encoder.from_pretrained(str(tiny_bert_dir), dtype=torch.float32, pooling="mean", dropout=0.1)
    return measure(encoder, settings(), HELD_OUT, batch_size=7)


def test_larger_radii_do_more_harm(measured):
    assert (measured["alignment"] > 0).all()
    assert measured["cosine@0.6"].mean() < measured["cosine@0.2"].mean() < 1
    assert measured["retrieval@0.6"].mean() <= measured["retrieval@0.2"].mean()
    assert measured["probe@0.1"].mean() <= measured["probe@0"].mean()


def test_measurement_does_not_depend_on_batches_or_the_global_seed(tiny_encoder, cfg):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean", dropout=0.1)
    first = measure(encoder, cfg, HELD_OUT)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again = measure(encoder, cfg, HELD_OUT)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    other = measure(encoder, cfg, HELD_OUT, batch_size=5)
    np.testing.assert_allclose(other["cosine@0.2"], first["cosine@0.2"], atol=1e-3)


def test_an_unchanged_model_shows_no_change(measured, cfg):
    results = compare(measured, measured, cfg)
    assert all(row["difference"] == row["low"] == row["high"] == 0 for row in results["rows"])
    assert {verdict(row) for row in results["rows"]} == {"unclear"}
    assert json.loads(json.dumps(results, allow_nan=False)) == results


def test_changes_are_signed_and_judged(measured, cfg):
    before, after = measured, dict(measured)
    after["cosine@0.2"] = before["cosine@0.2"] + 0.1
    after["alignment"] = before["alignment"] * 2
    after["vectors"] = before["vectors"] + 3 * before["vectors"].mean(axis=0)  # a narrower cone
    rows = {row["key"]: row for row in compare(before, after, cfg)["rows"]}
    assert rows["cosine@0.2"]["difference"] == pytest.approx(0.1)
    assert rows["cosine@0.2"]["low"] == pytest.approx(0.1) and rows["cosine@0.2"]["high"] == pytest.approx(0.1)
    judged = {key: verdict(rows[key]) for key in ("cosine@0.2", "alignment", "uniformity", "cosine@0.6")}
    assert judged == {"cosine@0.2": "better", "alignment": "worse", "uniformity": "worse", "cosine@0.6": "unclear"}


def test_tables_hold_every_row(measured, cfg):
    results = compare(measured, measured, cfg)
    text, markdown = text_table(results).splitlines(), markdown_table(results).splitlines()
    assert "24 held-out sentences" in text[0] and "before" in text[1]
    assert len(text) == 2 + len(results["rows"]) + len(results["warnings"])
    assert any(line.startswith("retrieval@1, radius 0.2") for line in text)
    assert any(line.startswith("sentiment probe, clean") for line in text)
    assert len(markdown) == 4 + len(results["rows"])
    assert {line.count("|") for line in markdown[2:]} == {6}


def test_an_attack_weaker_than_noise_is_reported(measured, cfg):
    masked = {**measured, "retrieval@0.2": np.ones(24), "noise_retrieval@0.2": np.full(24, 0.5)}
    found = {**measured, "noise_retrieval@0.2": np.ones(24), "noise_retrieval@0.6": np.ones(24)}
    warnings = compare(found, {**masked, "noise_retrieval@0.6": np.ones(24)}, cfg)["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith("after: at radius 0.2 retrieval@1 is 1.000 under attack but 0.500")


def test_a_measurement_survives_its_file_and_one_that_does_not_match_is_refused(measured, cfg, tmp_path):
    with pytest.raises(ValueError, match="do not match in 'cosine@0.6'"):
        compare(measured, {name: values for name, values in measured.items() if name != "cosine@0.6"}, cfg)
    save_measurement(measured, tmp_path / "before.npz")
    loaded = load_measurement(tmp_path / "before.npz")
    assert list(loaded) == list(measured) and all(np.array_equal(loaded[name], measured[name]) for name in measured)
    assert [path.name for path in tmp_path.iterdir()] == ["before.npz"]


def test_a_collapsed_model_retrieves_nothing(tiny_encoder, cfg):
    encoder = tiny_encoder(dtype=torch.float32)
    encoder.hf.encoder.layer[-1].output.LayerNorm.weight.data.zero_()
    encoder.hf.encoder.layer[-1].output.LayerNorm.bias.data.fill_(1)
    found = measure(encoder, cfg, HeldOut(HELD_OUT.sentences))
    assert found["retrieval@0.2"].sum() == 0
    assert not any(name.startswith("probe") for name in found)
    row = {row["key"]: row for row in compare(found, found, cfg)["rows"]}["uniformity"]
    assert row["before"] == pytest.approx(0, abs=1e-12)


def test_broken_weights_are_said(tiny_encoder, cfg):
    encoder = tiny_encoder(dtype=torch.float32)
    encoder.hf.embeddings.word_embeddings.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="NaN or infinity"):
        measure(encoder, cfg, HELD_OUT)


def test_drawn_sentences_differ_after_truncation(tiny_encoder):
    encoder = tiny_encoder(max_length=5)  # [CLS], three words, [SEP]
    texts = ["the film was good", "the film was bad", "a dull plot", "a dull plot", "a sad plot"] * 3
    drawn = draw_distinct(texts, 3, encoder, seed=0)
    assert len({tuple(tokens) for tokens in encoder.tokenize(drawn)[0]}) == 3
    assert draw_distinct(texts, 3, encoder, seed=0) == drawn
    assert len(draw_distinct(texts, 9, encoder, seed=0)) == 3


def test_held_out_sentences_of_a_file(tiny_encoder, tmp_path, cfg):
    (tmp_path / "held.txt").write_text("\n".join(TEXTS) + "\n")
    cfg.held_out, cfg.num_probe_sentences = str(tmp_path / "held.txt"), 0
    found = load_held_out(cfg, tiny_encoder())
    assert len(set(found.sentences)) == 24 and set(found.sentences) <= set(TEXTS)
    assert found.probe_test == ([], [])
    cfg.num_sentences = 100
    with pytest.raises(UserError, match="num_sentences is 100, but .*held.txt has only 36"):
        load_held_out(cfg, tiny_encoder())
    cfg.num_sentences = 3
    with pytest.raises(UserError, match="at least 16, got 3"):
        load_held_out(cfg, tiny_encoder())


def test_demo_probe_sentences_do_not_overlap(tiny_encoder, tmp_path, cfg):
    (tmp_path / "held.txt").write_text("\n".join(TEXTS) + "\n")
    cfg.held_out = str(tmp_path / "held.txt")
    found = load_held_out(cfg, tiny_encoder())
    (train, train_labels), (test, test_labels) = found.probe_train, found.probe_test
    assert (len(train), len(test), len(train_labels), len(test_labels)) == (2048, 16, 2048, 16)
    assert not set(train) & set(test) and set(train_labels) == set(test_labels) == {0, 1}
    cfg.num_probe_sentences = 8000
    with pytest.raises(UserError, match="num_probe_sentences must be 0 .* got 8000"):
        load_held_out(cfg, tiny_encoder())


WIDTH, NUM_WORDS = 5, 30


class WordMeans(torch.nn.Module):
    """h = mean of the words' rows @ mixing + bias. Its dropout shifts the rows by one of two tables, by turns."""

    device = torch.device("cpu")

    def __init__(self, seed, bias):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.rows, self.mixing = rng.normal(size=(NUM_WORDS, WIDTH)), rng.normal(size=(WIDTH, WIDTH))
        self.bias, self.masks = np.full(WIDTH, bias), rng.normal(size=(2, NUM_WORDS, WIDTH)) / 2
        self.num_dropouts = 0

    def tokenize(self, texts):
        tokens = [[int(word) for word in text.split()] for text in texts]
        return tokens, [[False] * len(words) for words in tokens]

    def pack(self, texts):
        return PackedBatch.from_token_lists(*self.tokenize(texts))

    def embed(self, batch, dropout=None):
        rows = self.rows
        if dropout:
            rows = rows + self.masks[self.num_dropouts % 2]
            self.num_dropouts += 1
        return torch.from_numpy(rows).float()[batch.input_ids]

    def encode(self, x, batch, dropout=None):
        sums = x.new_zeros(batch.num_sentences, WIDTH).index_add(0, batch.token_sentence, x)
        return sums / batch.lengths[:, None] @ torch.from_numpy(self.mixing).float() + torch.from_numpy(self.bias)

    def encode_texts(self, texts, batch_size):
        return np.stack([self.vector(self.rows[words]) for words in self.tokenize(texts)[0]]).astype(np.float32)

    def vector(self, x):
        return x.mean(axis=0) @ self.mixing + self.bias


def cosine(x, y):
    return x @ y / np.sqrt((x @ x) * (y @ y))


def is_own_nearest(vectors, clean):
    """(N,) whether vector i is nearer to clean[i] than to every other row."""
    similar = np.array([[cosine(v, c) for c in clean] for v in vectors])
    return np.array([row[i] > np.delete(row, i).max() for i, row in enumerate(similar)], dtype=float)


def attacked_vectors(model, texts, kappa, cfg):
    """Vectors at the start and at the worst of all points of a sign ascent on minus the cosine, in plain numpy."""
    starts, ends = [], []
    for row, words in enumerate(model.tokenize(texts)[0]):
        x = model.rows[words]
        clean, radius = model.vector(x), kappa * np.sqrt((x**2).mean())
        delta = radius * (2 * np.random.default_rng((cfg.seed, row)).random(x.shape, dtype=np.float32) - 1)
        points = []
        for _ in range(cfg.num_steps + 1):
            h = model.vector(x + delta)
            points.append(h)
            # d cos(h, c) / dh = (c/|c| - cos(h, c) h/|h|) / |h|; all tokens of a mean share one gradient.
            slope = clean / np.linalg.norm(clean) - cosine(h, clean) * h / np.linalg.norm(h)
            delta = np.clip(delta - radius / 3 * np.sign(model.mixing @ slope), -radius, radius)
        starts.append(points[0])
        ends.append(min(points, key=lambda h: cosine(h, clean)))
    return np.stack(starts), np.stack(ends)


def measured_by_hand(model, held_out, cfg):
    texts = held_out.sentences
    clean = model.encode_texts(texts, 1)
    views = [[(model.rows + mask)[words] for words in model.tokenize(texts)[0]] for mask in model.masks]
    units = [np.stack([h / np.linalg.norm(h) for h in map(model.vector, view)]) for view in views]
    values = {"vectors": clean, "alignment": ((units[0] - units[1]) ** 2).sum(axis=1)}
    centre = clean.mean(axis=0)
    for kappa in cfg.radii:
        start, end = attacked_vectors(model, texts, kappa, cfg)
        values[f"retrieval@{kappa}"] = is_own_nearest(end, clean)
        values[f"noise_retrieval@{kappa}"] = is_own_nearest(start, clean)
        values[f"cosine@{kappa}"] = np.array([cosine(v, c) for v, c in zip(end, clean)])
        values[f"centred_cosine@{kappa}"] = np.array([cosine(v - centre, c - centre) for v, c in zip(end, clean)])
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(model.encode_texts(held_out.probe_train[0], 1), held_out.probe_train[1])
    weight = probe[1].coef_[0] / probe[0].scale_
    texts, labels = held_out.probe_test[0], np.array(held_out.probe_test[1])
    margin = (2 * labels - 1) * probe.decision_function(model.encode_texts(texts, 1))
    values["probe@0"] = (margin > 0).astype(float)
    # These texts are numbers, in which nobody mistypes a letter; another test gives them mistakes.
    values["probe_misspelt"] = values["probe@0"]
    for share in (0.25, 0.5):
        kappa = share * min(cfg.radii)
        # The logit is linear in X: six thirds of the radius lead from any start to the corner of the ball.
        radii = [kappa * np.sqrt((model.rows[words] ** 2).mean()) for words in model.tokenize(texts)[0]]
        values[f"probe@{kappa:g}"] = (margin > np.array(radii) * np.abs(model.mixing @ weight).sum()).astype(float)
    return values


@pytest.fixture
def by_hand():
    """(config, held-out sentences, two models): sentences of one to six words, labels that words half explain."""
    cfg = EvaluationConfig(True, num_sentences=20, radii=[0.4, 0.9], num_steps=6, num_probe_sentences=24, seed=5)
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, NUM_WORDS, rng.integers(1, 7)))) for _ in range(100)]
    texts = list(dict.fromkeys(texts))[:84]
    tone = rng.normal(size=NUM_WORDS)
    labels = [int(np.mean([tone[int(word)] for word in text.split()]) > 0) for text in texts]
    held_out = HeldOut(texts[:20], (texts[20:60], labels[20:60]), (texts[60:], labels[60:]))
    return cfg, held_out, (WordMeans(seed=1, bias=0.5), WordMeans(seed=2, bias=1.0))


def test_every_measured_value_is_the_one_worked_out_by_hand(by_hand):
    cfg, held_out, models = by_hand
    for model in models:
        found, expected = measure(model, cfg, held_out, batch_size=7), measured_by_hand(model, held_out, cfg)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            # float32 through eight operations on entries near 1.
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5, err_msg=name)
        # Quantities that are easily taken for one another do differ here.
        for radius in cfg.radii:
            assert not np.array_equal(found[f"retrieval@{radius}"], found[f"noise_retrieval@{radius}"])
            assert abs(found[f"cosine@{radius}"] - found[f"centred_cosine@{radius}"]).min() > 1e-3
        fitted_on_test = measured_by_hand(
            model, HeldOut(held_out.sentences, held_out.probe_test, held_out.probe_test), cfg
        )
        assert not np.array_equal(found["probe@0"], fitted_on_test["probe@0"])


def test_the_misspelt_texts_are_judged_by_the_label_of_the_right_ones(by_hand, monkeypatch):
    cfg, held_out, (model, _) = by_hand
    texts, labels = held_out.probe_test
    monkeypatch.setattr(
        "fastadv.evaluation.before_after.before_after.misspell",
        lambda text, seed, number: texts[(number + 1 + seed) % len(texts)],
    )
    clean = measured_by_hand(model, held_out, cfg)["probe@0"]
    says_one = np.where(clean == 1, labels, 1 - np.array(labels))
    expected = np.roll(says_one, -1 - cfg.seed) == np.array(labels)
    found = measure(model, cfg, held_out)["probe_misspelt"]
    assert np.array_equal(found, expected) and not np.array_equal(found, clean)


def test_every_row_is_the_one_worked_out_by_hand(by_hand):
    """before, after, difference and its paired interval, of measurements made without the package."""
    cfg, held_out, models = by_hand
    before, after = (measured_by_hand(model, held_out, cfg) for model in models)
    rows = {row["key"]: row for row in compare(before, after, cfg)["rows"]}
    assert rows.keys() == {name for name in before if not name.startswith(("vectors", "noise"))} | {"uniformity"}
    for name, row in rows.items():
        if name == "uniformity":
            continue
        one, other = before[name], after[name]
        assert (row["before"], row["after"]) == pytest.approx((one.mean(), other.mean()), abs=1e-12)
        assert row["difference"] == pytest.approx((other - one).mean(), abs=1e-12)
        # Clean values, the probe's at "radius 0" among them, have no radius.
        assert row["radius"] == (float(name.partition("@")[2] or 0) or None)
        num = len(one)
        draws = np.random.default_rng(cfg.seed).multinomial(num, np.full(num, 1 / num), 2000)
        means = [np.repeat(other - one, counts).mean() for counts in draws]
        assert (row["low"], row["high"]) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=1e-12)
    for side, values in (("before", before), ("after", after)):
        units = [v / np.linalg.norm(v) for v in values["vectors"].astype(float)]
        pairs = [np.exp(-2 * ((u - v) ** 2).sum()) for i, u in enumerate(units) for v in units[:i]]
        assert rows["uniformity"][side] == pytest.approx(np.log(np.mean(pairs)), abs=1e-12)

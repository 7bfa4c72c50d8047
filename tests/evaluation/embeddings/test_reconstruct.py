"""Text-form adversarial examples: which word a perturbed token becomes, what counts as fooling, and the files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fastadv.cli.main import main
from fastadv.config.embedding_attack import AttackSettings
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.embeddings import reconstruct_run
from fastadv.evaluation.embeddings.classifier_attack import Texts, search
from fastadv.evaluation.embeddings.reconstruct import (
    _PLACEHOLDER,
    _Words,
    detokenized,
    load_reconstructor,
    reconstruct,
)
from fastadv.evaluation.embeddings.reconstruct_page import page
from fastadv.evaluation.embeddings.reconstruct_run import Example, _examples, _Made, _rates
from fastadv.evaluation.embeddings.search import Target, attacking
from fastadv.files.csv_file import read_csv
from fastadv.pages.shown_text import num_changed, word_changes
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier, own_labels, write_table

SETTINGS = AttackSettings(epsilons=(0.5, 8.0), num_steps=3)


class Module(nn.Module):
    """RAR's reconstructor as a module, its word embeddings tied to the encoder's."""

    def __init__(self, encoder):
        super().__init__()
        words = encoder.hf.get_input_embeddings().weight
        self.dense = nn.Linear(encoder.hidden_size, words.shape[1], dtype=words.dtype)
        self.norm = nn.LayerNorm(words.shape[1], eps=1e-12, dtype=words.dtype)
        self.bias = nn.Parameter(torch.randn(len(words), dtype=words.dtype) / 10)
        nn.init.normal_(self.norm.weight)
        self._words = [words]

    def forward(self, states):
        return self.norm(nn.functional.gelu(self.dense(states))) @ self._words[0].T + self.bias

    def save(self, folder):
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / _FILE)


_FILE = "reconstructor.safetensors"


@pytest.fixture
def classifier(tiny_bert_dir):
    return make_classifier(tiny_bert_dir)


def batch_of(classifier, texts=TEXTS):
    of_model = Texts(classifier, own_labels(classifier, texts))
    return of_model.pack(range(len(texts))), torch.as_tensor(of_model.labels)


@pytest.mark.parametrize("perturb_at", ["embedding", "word"])
def test_nothing_moved_is_the_text_itself(tiny_bert_dir, perturb_at):
    classifier = make_classifier(tiny_bert_dir, perturb_at=perturb_at)
    data = own_labels(classifier)
    plain = detokenized(classifier, data)
    # The tokenizer spells a text without the spaces before its marks.
    assert plain[0] == ("the film was not very good.", None)
    assert reconstruct(classifier, data, SETTINGS, epsilon=0.0, batch_size=5) == plain
    assert [classifier.encoder.tokenize([text])[0] for text, _ in plain] == [
        classifier.encoder.tokenize([text])[0] for text in TEXTS
    ]


@pytest.mark.parametrize("perturb_at", ["embedding", "word"])
def test_the_nearest_word_by_every_distance_there_is(tiny_bert_dir, perturb_at):
    classifier = make_classifier(tiny_bert_dir, perturb_at=perturb_at)
    encoder, (batch, _) = classifier.encoder, batch_of(classifier)
    x = encoder.embed(batch, dropout=False).detach()
    points = x + torch.randn_like(x) * x.std() * (4 if perturb_at == "word" else 1)
    ids = _Words(encoder).nearest(points, batch)
    assert torch.equal(ids[batch.is_special], batch.input_ids[batch.is_special])
    special, embeddings = encoder.tokenizer.all_special_ids, encoder.hf.embeddings
    every = torch.arange(encoder.vocab_size)[:, None]
    changed = 0
    for token in (~batch.is_special).nonzero().flatten().tolist():
        if perturb_at == "word":
            table = embeddings.word_embeddings(every)[:, 0]
        else:
            position = batch.position_ids[token].expand(len(every), 1)
            table = embeddings(input_ids=every, position_ids=position)[:, 0]
        distances = (table - points[token]).norm(dim=1)
        distances[special] = float("inf")
        assert ids[token] == distances.argmin()
        changed += int(ids[token] != batch.input_ids[token])
    assert changed > 5


def test_the_reconstructor_reads_the_states_of_the_perturbed_text(classifier, tmp_path):
    torch.manual_seed(5)
    encoder, module = classifier.encoder, Module(classifier.encoder)
    module.save(tmp_path)
    reconstructor = load_reconstructor(tmp_path, encoder)
    data, (batch, labels) = own_labels(classifier), batch_of(classifier)
    target = Target(classifier, batch, labels)
    with attacking(classifier):
        delta = search(target, SETTINGS, 8.0, SETTINGS.step_sizes[0], 0, range(len(TEXTS))).end.delta
        states = encoder.token_states(target.x + delta, batch, dropout=False)
    logits = module(states)
    words = encoder.hf.get_input_embeddings().weight
    torch.testing.assert_close(reconstructor.logits(states, words), logits, rtol=0, atol=1e-12)
    logits[:, encoder.tokenizer.all_special_ids] = -float("inf")
    ids = torch.where(batch.is_special, batch.input_ids, logits.argmax(dim=1))
    lengths = batch.lengths.tolist()
    expected = [encoder.tokenizer.decode(row[1:-1], clean_up_tokenization_spaces=True) for row in ids.split(lengths)]
    made = reconstruct(classifier, data, SETTINGS, 8.0, reconstructor, batch_size=12)
    assert [text for text, second in made] == expected and all(second is None for _, second in made)
    assert [text for text, _ in made] != [text for text, _ in detokenized(classifier, data)]


def test_a_file_that_is_no_reconstructor_is_refused(classifier, tmp_path):
    assert load_reconstructor(tmp_path, classifier.encoder) is None
    module = Module(classifier.encoder)
    module.bias = nn.Parameter(module.bias[:-1].clone())
    module.save(tmp_path)
    with pytest.raises(UserError, match="no reconstructor of this model.*bias"):
        load_reconstructor(tmp_path, classifier.encoder)
    (tmp_path / _FILE).write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        load_reconstructor(tmp_path, classifier.encoder)


def test_placeholders_are_no_words():
    for token, is_one in (("[unused12]", True), ("madeupword0001", True), ("unused", False), ("[unused]", False)):
        assert bool(_PLACEHOLDER.fullmatch(token)) == is_one


def test_pairs_stay_pairs(classifier):
    pairs = replace(own_labels(classifier, TEXTS[:6]), second=TEXTS[6:])
    made = reconstruct(classifier, pairs, SETTINGS, 0.0)
    assert made == detokenized(classifier, pairs)
    assert made[1] == ("a wonderful story!", "one always love a funny scene")


def test_a_padded_model_needs_words_or_a_reconstructor(tiny_bert_dir):
    generic = make_classifier(tiny_bert_dir, path="generic")
    data = own_labels(generic)
    with pytest.raises(UserError, match="perturb_at word"):
        reconstruct(generic, data, SETTINGS, 0.5)
    at_words = make_classifier(tiny_bert_dir, path="generic", perturb_at="word")
    assert reconstruct(at_words, data, SETTINGS, 0.0) == detokenized(at_words, data)


def test_changed_words():
    changes = word_changes("the film was not very good", "the movie was very very good indeed")
    assert changes == [
        ("the", "the"),
        ("film", "movie"),
        ("was", "was"),
        ("not", "very"),
        ("very good", "very good"),
        ("", "indeed"),
    ]
    assert num_changed(changes) == 3
    assert num_changed(word_changes("a b c", "a b c")) == 0 and num_changed(word_changes("a b c", "")) == 3


def test_fooling_is_being_right_and_then_wrong_on_other_words(classifier):
    """Texts of which it is known what the model says: another one's text in place of a text's own fools."""
    data = own_labels(classifier)
    labels = list(data.labels)
    labels[2] = (labels[2] + 1) % 4  # wrong from the start
    data = replace(data, labels=labels)
    other = {row: next(i for i in range(12) if own_labels(classifier).labels[i] != labels[row]) for row in range(12)}
    same = [next(i for i in range(12) if i != row and labels[i] == labels[row] and i != 2) for row in (0, 5)]
    texts = [(text, None) for text in TEXTS]
    made = list(texts)
    for row in (0, 1, 2, 3):
        made[row] = texts[other[row]]
    made[5] = texts[same[1]]  # other words of the same class
    made[6] = (TEXTS[6].replace(" ", "  "), None)  # the same once it is tokenised
    # Of text 4 the model says something else once its own tokenizer has spelt it: not attacked.
    plain = list(texts)
    plain[4] = texts[other[4]]
    made[4] = texts[other[4]]
    found = _examples("m", classifier, data, np.arange(100, 112), _Made(plain, {0.5: made, 1.0: texts}, False))
    first, second = found[:12], found[12:]
    assert [one.row for one in first] == list(range(100, 112)) and {one.epsilon for one in second} == {1.0}
    assert [i for i, one in enumerate(first) if one.is_fooled] == [0, 1, 3]
    assert [i for i, one in enumerate(first) if not one.is_attacked] == [2, 4]
    assert not any(one.is_fooled for one in second)
    rows = _rates(found, (0.5, 1.0))
    assert rows[0]["num_attacked"] == 10 and rows[0]["num_fooled"] == 3 and rows[0]["success"] == 0.3
    assert sum(of_class["num_fooled"] for of_class in rows[0]["per_class"].values()) == 3
    few = [one for one in first if one.is_fooled and one.num_words_changed <= 2]
    assert rows[0]["success_few_words"] == len(few) / 10 and rows[1]["success"] == 0
    assert rows[1]["share_of_words_changed"] == 0
    assert _rates([], (0.5,))[0]["success"] is None


def test_the_page_marks_words_and_brings_no_code():
    example = Example(
        "m", 7, 0.5, "good", "good", "bad", True, True, "a <b>fine</b> film", "a <script>dull</script> film"
    )
    rates = _rates([example], (0.5,))
    results = {
        "data": {"num_texts": 1, "source": "<texts>", "split": "test"},
        "settings": {"num_steps": 3, "norm": "l2"},
        "protocol": {"transfer_from": None},
        "max_words": 2,
        "max_share": 0.2,
        "models": [{"name": "m", "has_reconstructor": False, "epsilons": rates}],
    }
    html = page(results, [example])
    assert "<del>&lt;b&gt;fine&lt;/b&gt;</del> <ins>&lt;script&gt;dull&lt;/script&gt;</ins>" in html
    assert "<script" not in html and "http" not in html.replace("http-equiv", "") and "&lt;texts&gt;" in html
    assert "100.0%" in html and "good → bad" in html


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    folder = tmp_path_factory.mktemp("reconstruct")
    torch.set_num_threads(1)
    for name, seed in (("a", 0), ("b", 3)):
        classifier = make_classifier(tiny_bert_dir, dtype=torch.float32, seed=seed)
        classifier.save_pretrained(folder / name)
        if name == "a":
            write_table(folder / "texts.csv", own_labels(classifier))
    Module(classifier.encoder).save(folder / "b")
    return folder


def run(folder, out, capsys, *more, models=("a",), status=0):
    chosen = [argument for name in models for argument in ("--model", str(folder / name))]
    arguments = ["attack", "--method", "reconstruct", *chosen, "--data", str(folder / "texts.csv"), "--out", str(out)]
    assert main([*arguments, "--num_steps", "3", "--epsilons", "8", "20", *map(str, more)]) == status
    return capsys.readouterr()


def rows_of(out):
    return read_csv(out / "reconstruct.csv")


def test_the_table_is_what_the_model_says_of_the_text(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    printed = run(folder, out, capsys)
    rows, results = rows_of(out), json.loads((out / "reconstruct.json").read_text())
    assert len(rows) == 24 and [row["epsilon"] for row in rows[:13]] == ["8.0"] * 12 + ["20.0"]
    classifier = Classifier.from_pretrained(str(folder / "a"))
    after = classifier.classify_texts([row["reconstructed"] for row in rows]).argmax(axis=1)
    assert [row["predicted_after"] for row in rows] == [CLASSES[i] for i in after]
    fooled = [row for row in rows if row["is_fooled"] == "1"]
    assert fooled and all(row["predicted_after"] != row["label"] == row["predicted"] for row in fooled)
    assert all(int(row["num_words_changed"]) > 0 for row in fooled)
    (model,) = results["models"]
    assert sum(one["num_fooled"] for one in model["epsilons"]) == len(fooled) and not model["has_reconstructor"]
    assert f"{model['epsilons'][1]['success']:.1%}" in printed.out
    assert "<ins>" in (out / "reconstruct.html").read_text(encoding="utf-8")
    # Finished radii are read.
    monkeypatch.setattr(reconstruct_run, "reconstruct", None)
    assert run(folder, out, capsys).out == printed.out
    assert rows_of(out) == rows


def test_one_model_makes_the_texts_of_all(folder, tmp_path, capsys):
    out = tmp_path / "out"
    run(folder, out, capsys, "--transfer_from", folder / "b", models=("a", "b"))
    rows, results = rows_of(out), json.loads((out / "reconstruct.json").read_text())
    first, second = ([row["reconstructed"] for row in rows if row["model"] == name] for name in "ab")
    assert first == second and len(first) == 24
    assert all(model["has_reconstructor"] for model in results["models"])
    own = tmp_path / "own"
    run(folder, own, capsys)
    assert [row["reconstructed"] for row in rows_of(own)] != first


def test_dry_run_and_mistakes(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folder, out, capsys, "--dry_run").out.startswith("would make adversarial text") and not out.exists()
    for more, expected in ((["--num_restarts", "2"], "one run"), (["--step_sizes", "0.1", "0.2"], "one step size")):
        line = run(folder, out, capsys, *more, status=2).err
        assert len(line.splitlines()) == 1 and expected in line

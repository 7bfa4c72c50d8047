"""Which models open, what their files say, and the one line for those that do not."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastadv.encoder import Encoder, find_model
from fastadv.errors import UserError


@pytest.fixture
def model_dir(tiny_bert_dir, tmp_path):
    return shutil.copytree(tiny_bert_dir, tmp_path / "model")


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(model):
    with pytest.raises(UserError) as caught:
        Encoder.from_pretrained(str(model))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_that_does_not_exist(tmp_path):
    assert "nowhere' does not exist" in refused(tmp_path / "nowhere")
    assert "'./nowhere' does not exist" in refused("./nowhere")
    assert "'' does not exist" in refused("")


def test_a_name_that_is_not_in_the_cache(monkeypatch):
    # The flag itself is read when the hub library is imported: conftest.py sets it.
    message = refused("no-such-owner/no-such-model")
    assert message.startswith("model 'no-such-owner/no-such-model' cannot be opened: neither a folder here nor")
    assert "HF_HUB_OFFLINE" in message


def test_a_folder_without_configuration(tmp_path):
    assert "has no config.json" in refused(tmp_path)


def test_a_broken_configuration(model_dir):
    (model_dir / "config.json").write_text("{")
    assert "cannot be opened" in refused(model_dir)


def test_an_unknown_architecture(model_dir):
    edit_config(model_dir, model_type="unheard_of")
    assert "cannot be opened" in refused(model_dir)


def test_a_model_with_code_of_its_own(model_dir):
    edit_config(model_dir, model_type="mine", auto_map={"AutoConfig": "mine.Mine", "AutoModel": "mine.Model"})
    (model_dir / "mine.py").write_text("raise SystemExit('this code ran')")
    assert "code of its own, which is never run" in refused(model_dir)


def test_an_encoder_decoder(model_dir):
    (model_dir / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    assert "encoder-decoder (t5)" in refused(model_dir)


def test_pickled_weights(model_dir):
    state = load_file(model_dir / "model.safetensors")
    torch.save(state, model_dir / "pytorch_model.bin")
    (model_dir / "model.safetensors").unlink()
    message = refused(model_dir)
    assert "pickled weights only (pytorch_model.bin)" in message and "save_pretrained" in message


def test_no_weights(model_dir):
    (model_dir / "model.safetensors").unlink()
    assert "has no weights" in refused(model_dir)


def test_torn_weights(model_dir):
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert "cannot be loaded" in refused(model_dir)


def test_missing_weights_are_not_made_up(model_dir):
    path = model_dir / "model.safetensors"
    state = load_file(path)
    del state["encoder.layer.1.output.dense.weight"]
    save_file(state, path, metadata={"format": "pt"})
    assert "lacks 1 weights of BertModel: encoder.layer.1.output.dense.weight" in refused(model_dir)


def test_a_checkpoint_with_a_task_head_opens(model_dir, tiny_encoder, sentences):
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification.from_pretrained(model_dir)
    model.save_pretrained(model_dir)
    encoder, plain = Encoder.from_pretrained(str(model_dir)), tiny_encoder(dtype=torch.float32)
    assert torch.equal(encoder.eval()(encoder.pack(sentences)), plain.eval()(plain.pack(sentences)))


def test_no_tokenizer(model_dir):
    for path in [*model_dir.glob("*token*"), model_dir / "vocab.txt"]:
        path.unlink()
    assert "has no tokenizer that opens" in refused(model_dir)


def test_what_is_known_before_weights_are_read(model_dir):
    (model_dir / "model.safetensors").unlink()
    source = find_model(str(model_dir))
    assert (source.num_positions, source.pooling, source.saved_max_length) == (64, None, None)
    with pytest.raises(UserError, match="max_length 100 is above the 64 positions"):
        source.check_max_length(100)
    with pytest.raises(UserError, match="max_length 100 is above the 64 positions"):
        Encoder.from_pretrained(str(model_dir), max_length=100)


def write_pooling(folder, pooling_config, extra_modules=()):
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *extra_modules]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling_config))


@pytest.mark.parametrize(
    ("pooling_config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "max"}, None),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
    ],
)
def test_pooling_is_read_from_sentence_transformers_files(pooling_config, expected, model_dir):
    write_pooling(model_dir, pooling_config)
    assert find_model(str(model_dir)).pooling == expected


def test_lengths_and_poolings_given_beat_the_files(model_dir):
    write_pooling(model_dir, {"pooling_mode": "mean"})
    (model_dir / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    saved, given = (Encoder.from_pretrained(str(model_dir), **o) for o in ({}, {"pooling": "cls", "max_length": 9}))
    assert (saved.pooling, saved.max_length) == ("mean", 20)
    assert (given.pooling, given.max_length) == ("cls", 9)


def test_a_left_out_module_is_said(model_dir, caplog):
    write_pooling(model_dir, {"pooling_mode": "mean"}, [("Normalize", "2_Normalize"), ("Dense", "3_Dense")])
    find_model(str(model_dir))
    assert "Dense is left out" in caplog.text and "Normalize" not in caplog.text

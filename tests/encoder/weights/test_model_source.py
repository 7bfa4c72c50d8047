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


def test_a_reason_on_the_second_line_is_told(model_dir, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("Validation error for field 'hidden_size':\n    TypeError: expected int, got str\nmore")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    assert refused(model_dir).endswith("Validation error for field 'hidden_size': TypeError: expected int, got str")


def code_of_its_own(folder):
    edit_config(folder, model_type="mine", auto_map={"AutoConfig": "mine.Mine", "AutoModel": "mine.Model"})
    (folder / "mine.py").write_text("raise SystemExit('this code ran')")


def an_encoder_decoder(folder):
    from transformers import T5Config

    T5Config().save_pretrained(folder)


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def torn(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def without_a_weight(folder):
    state = load_file(folder / "model.safetensors")
    del state["encoder.layer.1.output.dense.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def without_tokenizer(folder):
    for path in [*folder.glob("*token*"), folder / "vocab.txt"]:
        path.unlink()


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be opened"),
        (lambda folder: edit_config(folder, model_type="unheard_of"), "cannot be opened"),
        (code_of_its_own, "code of its own, which is never run"),
        (an_encoder_decoder, "encoder-decoder (t5)"),
        (pickled, r"pickled weights only (pytorch_model.bin), which are not opened; where you trust them, convert"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (torn, "cannot be loaded"),
        (without_a_weight, "lacks 1 weights of BertModel: encoder.layer.1.output.dense.weight"),
        (without_tokenizer, "has no tokenizer that opens"),
    ],
)
def test_what_does_not_open_is_refused_in_one_line(model_dir, change, said):
    change(model_dir)
    assert said in refused(model_dir)


def test_a_checkpoint_with_a_task_head_opens(model_dir, tiny_encoder, sentences):
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification.from_pretrained(model_dir)
    model.save_pretrained(model_dir)
    encoder, plain = Encoder.from_pretrained(str(model_dir)), tiny_encoder(dtype=torch.float32)
    assert torch.equal(encoder.eval()(encoder.pack(sentences)), plain.eval()(plain.pack(sentences)))


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)], ids=lambda kept: "".join(kept) or "nothing")
@pytest.mark.parametrize("family", ["Bert", "Roberta", "MPNet", "Albert", "DebertaV2", "GPT2", "XLMRoberta"])
def test_no_tokenizer_of_any_family(model_dir, family, kept):
    """transformers 4 raises, each class in its own way; transformers 5 makes a tokenizer of special tokens alone."""
    import transformers

    from fastadv.encoder.weights.source import load_tokenizer

    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    getattr(transformers, f"{family}Config")(**sizes).save_pretrained(model_dir)
    for path in [*model_dir.glob("*token*"), model_dir / "vocab.txt"]:
        if path.name not in kept:
            path.unlink()
    if kept:
        # The saved class is BERT's; without it, the configuration names the family's.
        path = model_dir / "tokenizer_config.json"
        saved = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in saved.items() if k != "tokenizer_class"}))
    with pytest.raises(UserError) as caught:
        load_tokenizer(find_model(str(model_dir)))
    message = str(caught.value)
    assert f"model {str(model_dir)!r} has no tokenizer that opens: " in message and message.isprintable()


def test_added_tokens_are_no_vocabulary(model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.add_tokens(["entity"])
    tokenizer.save_pretrained(model_dir)
    assert "entity" in Encoder.from_pretrained(str(model_dir)).tokenizer.get_added_vocab()
    for name in ("tokenizer.json", "vocab.txt"):
        (model_dir / name).unlink()
    assert "has no tokenizer that opens" in refused(model_dir)


def test_a_tokenizer_that_needs_no_files_opens(model_dir):
    """Bytes are their own vocabulary."""
    from transformers import PerceiverConfig

    from fastadv.encoder.weights.source import load_tokenizer

    PerceiverConfig().save_pretrained(model_dir)
    without_tokenizer(model_dir)
    assert type(load_tokenizer(find_model(str(model_dir)))).__name__ == "PerceiverTokenizer"


@pytest.mark.parametrize("has_bars", [True, False])
def test_weights_come_and_go_without_a_word_on_stderr(model_dir, tmp_path, capfd, has_bars):
    """A user's own bars, and a mistake's one line, stand alone there. transformers 5 draws a bar for both."""
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as transformers_logging

    def settings():
        return (
            transformers_logging.is_progress_bar_enabled(),
            transformers_logging.get_verbosity(),
            are_progress_bars_disabled(),
        )

    before = settings()
    switch = {True: transformers_logging.enable_progress_bar, False: transformers_logging.disable_progress_bar}
    try:
        switch[has_bars]()
        given = settings()
        capfd.readouterr()
        Encoder.from_pretrained(str(model_dir)).save_pretrained(tmp_path / "out")
        assert capfd.readouterr() == ("", "") and settings() == given and given[0] == has_bars
        torn(model_dir)
        refused(model_dir)
        assert capfd.readouterr() == ("", "") and settings() == given
    finally:
        switch[before[0]]()


def test_what_is_known_before_weights_are_read(model_dir):
    (model_dir / "model.safetensors").unlink()
    source = find_model(str(model_dir))
    assert (source.num_positions, source.files.pooling, source.files.max_length) == (64, None, None)
    with pytest.raises(UserError, match="max_length 100 is above the 64 positions"):
        source.check_max_length(100)
    with pytest.raises(UserError, match="max_length 100 is above the 64 positions"):
        Encoder.from_pretrained(str(model_dir), max_length=100)

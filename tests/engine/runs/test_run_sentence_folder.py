"""A run that starts from a folder of sentence-transformers: what it says, what it trains, and what it leaves."""

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from fastadv import Encoder, Trainer
from fastadv.errors import UserError
from fastadv.launch.checks import check_encoder
from tests.encoder.conftest import sentence_transformer_vectors
from tests.encoder.sentence_files.folders import TEXTS, Folder, read_json

SAID = {
    "prompts": {"query": "the film : ", "other": "a story "},
    "default_prompt_name": "query",
    "similarity_fn_name": "dot",
}


@pytest.fixture
def folder(tiny_bert_dir, tmp_path):
    kinds = {"after": ("Dense", "Normalize"), "max_length": 40, "lower_case": True, "settings": SAID}
    return Folder(**kinds, subfolder="0_Transformer").write(tiny_bert_dir, tmp_path / "base")


def test_it_trains_all_of_it_and_leaves_such_a_folder(folder, make_config, capsys):
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: owner/base\n---\n", encoding="utf-8")
    config = make_config("run", **{"encoder.model": str(folder), "train.max_steps": 2, "perturbation.num_steps": 1})
    run = Trainer(config, writes_report=False).fit()
    kept = yaml.safe_load((run / "config.yaml").read_text())["encoder"]
    assert (kept["pooling"], kept["max_length"], kept["prompt"]) == ("mean", 40, "the film : ")
    assert "mean pooling, Dense, Normalize, cut to 40 tokens, prompt 'the film : '" in capsys.readouterr().err
    export = run / "model"
    encoder = Encoder.from_pretrained(str(export))
    vectors = encoder.encode_texts(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(sentence_transformer_vectors(export, TEXTS), vectors, rtol=0, atol=1e-5)
    before, after = (load_file(place / "2_Dense/model.safetensors")["linear.weight"] for place in (folder, export))
    assert before.shape == after.shape and not torch.equal(before, after)
    assert read_json(export / "config_sentence_transformers.json").items() >= SAID.items()
    assert read_json(export / "sentence_bert_config.json") == {"max_seq_length": 40, "do_lower_case": True}
    card = ModelCard.load(export / "README.md")
    assert (card.data.license, card.data.base_model) == ("mit", "owner/base")
    assert {"fastadv", "adversarial-training", "robustsentembed"} <= set(card.data.tags)
    assert "prompt 'the film : '; compared by dot similarity" in card.text


def test_a_head_of_classes_reads_pooled_states(folder, make_config):
    config = make_config("run", **{"encoder.model": str(folder), "objective": "adversarial_training", "data.label_field": "label"})
    with pytest.raises(UserError, match="has Dense after its pooling; a classification head reads pooled states"):
        check_encoder(config)


def test_what_a_config_leaves_to_the_model_is_filled_in(folder, make_config, tiny_bert_dir):
    config = make_config("run", **{"encoder.model": str(folder), "encoder.prompt_name": "other"})
    check_encoder(config)
    encoder = config.encoder
    assert (encoder.pooling, encoder.max_length, encoder.prompt, encoder.prompt_name) == ("mean", 40, "a story ", None)
    config = make_config("run", **{"encoder.model": str(folder), "encoder.prompt": "", "encoder.pooling": "cls"})
    check_encoder(config)
    assert (config.encoder.pooling, config.encoder.prompt) == ("cls", "")
    config = make_config("run", **{"encoder.model": str(tiny_bert_dir)})
    check_encoder(config)
    assert (config.encoder.pooling, config.encoder.max_length, config.encoder.prompt) == ("cls", 64, None)
    for wrong, said in (({"prompt_name": "none"}, "no such prompt"), ({"max_length": 65}, "at most 64")):
        config = make_config("run", **{"encoder.model": str(folder), **{f"encoder.{k}": v for k, v in wrong.items()}})
        with pytest.raises(UserError, match=said):
            check_encoder(config)

"""A folder gives the vectors that sentence-transformers gives, or is refused in one line; an export keeps all of it."""

import logging
import shutil
import stat

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fastadv.encoder import Encoder, find_model
from fastadv.encoder.sentence_files.read import TRANSFORMER_FILES
from fastadv.errors import UserError
from tests.encoder.conftest import sentence_transformer_vectors
from tests.encoder.sentence_files.folders import FLAGS, TEXTS, Folder, read_json, write_json

PROMPTS = {"query": "the film : ", "passage": "A STORY , ", "none": ""}


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory, tiny_bert_dir):
    """A cased tokenizer, which knows lower-case words alone, with a packed and a padded model, one counting positions
    from the padding."""
    import transformers

    folder = tmp_path_factory.mktemp("sentence-models")
    vocabulary, cased = str(tiny_bert_dir / "vocab.txt"), {"do_lower_case": False, "model_max_length": 64}
    tokenizer = transformers.BertTokenizerFast(vocabulary, **cased)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    common = {"vocab_size": len(tokenizer), "initializer_range": 0.2, "pad_token_id": 0, "max_position_embeddings": 65}
    of_distilbert = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    for family, own in (("Bert", sizes), ("Roberta", sizes), ("DistilBert", of_distilbert)):
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**common, **own)
        getattr(transformers, f"{family}Model")(config).save_pretrained(folder / family)
        tokenizer.save_pretrained(folder / family)
    # It takes no types of tokens.
    transformers.DistilBertTokenizerFast(vocabulary, **cased).save_pretrained(folder / "DistilBert")
    return folder


def assert_equal_vectors(ours, theirs):
    norms = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(1) / norms[0] / norms[1]
    assert ours.shape == theirs.shape and cosines.min() > 0.99999
    np.testing.assert_allclose(*norms, rtol=1e-4)


def assert_same_as_sentence_transformers(folder, out):
    """The folder and its export, opened by both."""
    encoder = Encoder.from_pretrained(str(folder))
    ours = encoder.encode_texts(TEXTS)
    assert_equal_vectors(ours, sentence_transformer_vectors(folder, TEXTS))
    export = encoder.save_pretrained(out)
    assert_equal_vectors(ours, sentence_transformer_vectors(export, TEXTS))
    again = Encoder.from_pretrained(str(export))
    np.testing.assert_allclose(again.encode_texts(TEXTS), ours, rtol=0, atol=1e-6 * np.abs(ours).max())
    assert again.settings == encoder.settings and again.files.settings.items() >= encoder.files.settings.items()
    return encoder, export


MODES = st.lists(st.sampled_from(list(FLAGS)), min_size=1, max_size=3, unique=True)
ACTIVATIONS = ["activation.Tanh", "activation.ReLU", "linear.Identity", "activation.GELU"]


@st.composite
def folders(draw):
    has_new_names = draw(st.booleans())
    modes = draw(MODES)
    # Flags have one order.
    modes = modes if has_new_names else [mode for mode in FLAGS if mode in modes]
    prompts = draw(st.none() | st.just(PROMPTS))
    default = None if prompts is None else draw(st.none() | st.sampled_from(list(PROMPTS)))
    said = {"prompts": prompts or {}, "default_prompt_name": default, "__version__": {"pytorch": "1.8.1"}}
    said |= draw(st.sampled_from([{}, {"similarity_fn_name": "dot"}, {"truncate_dim": 7}]))
    return Folder(
        modes=tuple(modes),
        after=tuple(draw(st.lists(st.sampled_from(["Normalize", "Dense", "LayerNorm", "Dropout"]), max_size=3))),
        activation=draw(st.none() | st.sampled_from([f"torch.nn.modules.{name}" for name in ACTIVATIONS])),
        max_length=draw(st.sampled_from([None, 12, 64])),
        lower_case=draw(st.booleans()),
        settings=draw(st.sampled_from([{}, said])),
        subfolder=draw(st.sampled_from(["", "0_Transformer"])),
        config_name=draw(st.sampled_from(TRANSFORMER_FILES)),
        has_new_names=has_new_names,
        include_prompt=draw(st.booleans()),
    )


@settings(max_examples=25)
@given(family=st.sampled_from(["Bert", "Roberta", "DistilBert"]), folder=folders())
def test_a_folder_is_what_sentence_transformers_makes_of_it(family, folder, model_dirs, tmp_path_factory):
    place = tmp_path_factory.mktemp("folder")
    encoder, export = assert_same_as_sentence_transformers(
        folder.write(model_dirs / family, place / "model"), place / "export"
    )
    limits = read_json(export / "sentence_bert_config.json")
    assert limits["do_lower_case"] == folder.lower_case
    assert limits["max_seq_length"] == encoder.max_length == (folder.max_length or 64)
    kept = read_json(export / "config_sentence_transformers.json")
    assert kept.items() >= folder.settings.items()
    assert [module["type"].rsplit(".")[-1] for module in read_json(export / "modules.json")][2:] == list(folder.after)
    shutil.rmtree(place)


@pytest.fixture
def write(model_dirs, tmp_path):
    """``write(family="Bert", ...)``: a `Folder` of these fields."""

    def make(family="Bert", **fields):
        return Folder(**fields).write(model_dirs / family, tmp_path / "model")

    return make


def test_lower_casing_and_the_default_prompt_make_a_difference(model_dirs, tmp_path):
    """So that the law above is not kept by a folder that says nothing."""
    said = {"prompts": PROMPTS, "default_prompt_name": "query"}
    made = [
        Encoder.from_pretrained(str(Folder(**fields).write(model_dirs / "Bert", tmp_path / str(i)))).encode_texts(TEXTS)
        for i, fields in enumerate(({}, {"lower_case": True}, {"settings": said}, {"modes": ("max",)}))
    ]
    plain, *others = made
    for other in others:
        assert np.abs(other - plain).max() > 0.01 * np.abs(plain).max()


def refused(folder, **options):
    with pytest.raises(UserError) as caught:
        Encoder.from_pretrained(str(folder), **options)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    return message


def change(folder, name, **values):
    write_json(folder / name, {**read_json(folder / name), **values})


def set_type(folder, index, kind):
    modules = read_json(folder / "modules.json")
    modules[index]["type"] = kind
    write_json(folder / "modules.json", modules)


def call_the_last_one(folder, name):
    modules = read_json(folder / "modules.json")
    modules[-1]["name"] = name
    write_json(folder / "modules.json", modules)


def only_pickled(folder):
    path = folder / "2_Dense" / "model.safetensors"
    torch.save(load_file(path), path.with_name("pytorch_model.bin"))
    path.unlink()


def cut_weights(folder):
    path = folder / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": torch.zeros(3, 3)}, path)


@pytest.mark.parametrize(
    "said, spoil",
    [
        ("module LSTM", lambda folder: set_type(folder, 2, "sentence_transformers.models.LSTM")),
        ("code of its own (mine.Dense)", lambda folder: set_type(folder, 2, "mine.Dense")),
        ("module StaticEmbedding", lambda folder: set_type(folder, 0, "sentence_transformers.models.StaticEmbedding")),
        ("no pooling", lambda folder: set_type(folder, 1, "sentence_transformers.models.Normalize")),
        ("median pooling", lambda folder: change(folder, "1_Pooling/config.json", pooling_mode="median")),
        (
            "a SparseEncoder",
            lambda folder: write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"}),
        ),
        ("transformer_task", lambda folder: change(folder, "sentence_bert_config.json", transformer_task="fill-mask")),
        (
            "pooler_output",
            lambda folder: change(
                folder,
                "sentence_bert_config.json",
                modality_config={"text": {"method": "forward", "method_output_name": "pooler_output"}},
            ),
        ),
        (
            "config argument num_hidden_layers",
            lambda folder: change(folder, "sentence_bert_config.json", config_args={"num_hidden_layers": 1}),
        ),
        (
            "tokenizer argument do_lower_case",
            lambda folder: change(folder, "sentence_bert_config.json", tokenizer_args={"do_lower_case": True}),
        ),
        (
            "my_package.Swish, which is not supported",
            lambda folder: change(folder, "2_Dense/config.json", activation_function="my_package.Swish"),
        ),
        (
            "token_embeddings, which is not supported",
            lambda folder: change(folder, "2_Dense/config.json", module_input_name="token_embeddings"),
        ),
        (
            "reads vectors of 48 numbers, and it is given 32",
            lambda folder: change(folder, "2_Dense/config.json", in_features=48),
        ),
        ("pickled weights are not opened", only_pickled),
        ("2_Dense/model.safetensors holds", cut_weights),
        ("cannot be read", lambda folder: (folder / "1_Pooling/config.json").write_text("{")),
        ("cannot be read", lambda folder: write_json(folder / "modules.json", {"a": 1})),
        ("more than one module called '1'", lambda folder: call_the_last_one(folder, "1")),
        ("has no 1_Pooling/config.json", lambda folder: (folder / "1_Pooling/config.json").unlink()),
        ("holds an adapter of peft", lambda folder: write_json(folder / "adapter_config.json", {"peft_type": "LORA"})),
        ("names no model_type", lambda folder: write_json(folder / "config.json", {})),
        (
            "lies outside",
            lambda folder: write_json(
                folder / "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": "../other"}]
            ),
        ),
        (
            "default_prompt_name is 'query'",
            lambda folder: write_json(folder / "config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ),
        (
            "similarity_fn_name is 'angle'",
            lambda folder: write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "angle"}),
        ),
    ],
)
def test_what_cannot_be_computed_is_named_in_one_line(said, spoil, write):
    folder = write(after=("Dense", "Normalize"))
    spoil(folder)
    assert said in refused(folder)


def test_a_named_pooling_uses_the_states_of_a_folder_that_is_not_supported(write, caplog, tmp_path):
    folder = write(after=("Dense",))
    set_type(folder, 2, "sentence_transformers.models.LSTM")
    encoder = Encoder.from_pretrained(str(folder), pooling="mean")
    assert "module LSTM is left out for mean pooling" in caplog.text and encoder.settings["modules"] == []
    export = encoder.save_pretrained(tmp_path / "export")
    assert_equal_vectors(encoder.encode_texts(TEXTS), sentence_transformer_vectors(export, TEXTS))


def test_a_named_pooling_keeps_the_modules_that_fit(write):
    folder = write(modes=("cls", "mean"), after=("Dense",))
    assert "reads vectors of 64 numbers, and it is given 32" in refused(folder, pooling="cls")
    encoder = Encoder.from_pretrained(str(folder), pooling="mean+max")
    assert (encoder.pooling, encoder.hidden_size, encoder.vector_size) == ("mean+max", 32, 24)


def test_a_length_above_the_positions_is_the_smaller_one_with_a_line(write, caplog, tmp_path):
    folder = write(max_length=512)
    with caplog.at_level(logging.WARNING, logger="fastadv"):
        encoder = Encoder.from_pretrained(str(folder))
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("max_seq_length 512 is above its 65 positions: texts are cut to 65 tokens")
    assert encoder.max_length == 65 and encoder.encode_texts(["the " * 200]).shape == (1, 32)
    assert read_json(encoder.save_pretrained(tmp_path / "out") / "sentence_bert_config.json")["max_seq_length"] == 65


def test_prompts_are_chosen_by_text_or_name(write, tmp_path):
    folder = write(settings={"prompts": PROMPTS, "default_prompt_name": "passage"})
    default, by_name, by_text, without = (
        Encoder.from_pretrained(str(folder), **options)
        for options in ({}, {"prompt_name": "query"}, {"prompt": PROMPTS["query"]}, {"prompt": ""})
    )
    assert (default.prompt, by_name.prompt, by_text.prompt, without.prompt) == ("A STORY , ", *["the film : "] * 2, "")
    vectors = by_name.encode_texts(TEXTS)
    np.testing.assert_array_equal(vectors, by_text.encode_texts(TEXTS))
    np.testing.assert_array_equal(vectors, without.encode_texts([PROMPTS["query"] + text for text in TEXTS]))
    assert by_name.tokenizer_fingerprint != default.tokenizer_fingerprint != without.tokenizer_fingerprint
    assert "its prompts are query, passage, none" in refused(folder, prompt_name="other")
    assert "both given" in refused(folder, prompt_name="query", prompt="x")
    with pytest.raises(UserError, match="leaves no room"):
        Encoder.from_pretrained(str(folder), max_length=6, prompt="the film was very good and ")
    # An export's default is the prompt that it was opened with.
    for encoder, name in ((by_name, "query"), (without, None), (default, "passage")):
        export = encoder.save_pretrained(tmp_path / f"export-{name}")
        assert read_json(export / "config_sentence_transformers.json")["default_prompt_name"] == name
        assert_equal_vectors(encoder.encode_texts(TEXTS), sentence_transformer_vectors(export, TEXTS))
    other = Encoder.from_pretrained(str(folder), prompt="a story : ").save_pretrained(tmp_path / "other")
    kept = read_json(other / "config_sentence_transformers.json")
    assert kept["prompts"] == {**PROMPTS, "default": "a story : "} and kept["default_prompt_name"] == "default"


def test_a_pair_has_the_prompt_once_before_the_first_text(write):
    encoder = Encoder.from_pretrained(str(write()), prompt="the film : ")
    tokens, _, types = encoder.tokenize_pairs(["never"], ["it is dull"])
    said = encoder.tokenizer("the film : never", "it is dull")
    assert (tokens[0], types[0]) == (said["input_ids"], said["token_type_ids"])


def test_the_pooler_is_exported_as_it_was(write, tmp_path, model_dirs):
    from transformers import AutoModel

    folder = write()
    before = load_file(folder / "model.safetensors")
    torch.manual_seed(5)
    state = torch.get_rng_state()
    encoder = Encoder.from_pretrained(str(folder))
    assert encoder.hf.pooler is None and torch.equal(torch.get_rng_state(), state)
    export = encoder.save_pretrained(tmp_path / "export")
    after = load_file(export / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    _, info = AutoModel.from_pretrained(export, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_a_pooler_that_was_not_there_is_not_made_up(tiny_encoder, tmp_path):
    export = tiny_encoder(dtype=torch.float32).save_pretrained(tmp_path / "export")
    assert not [name for name in load_file(export / "model.safetensors") if "pooler" in name]


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_follow_the_umask(umask, mode, write, tmp_path):
    import os

    encoder = Encoder.from_pretrained(str(write(after=("Dense", "Normalize"))))
    before = os.umask(umask)
    try:
        export = encoder.save_pretrained(tmp_path / "export")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in export.rglob("*") if path.is_file()}
    assert set(modes.values()) == {mode} and "model.safetensors" in modes


def test_what_is_known_without_weights(write):
    folder = write(modes=("cls",), after=("Normalize",), max_length=20, lower_case=True, subfolder="0_Transformer")
    (folder / "0_Transformer" / "model.safetensors").unlink()
    files = find_model(str(folder)).files
    assert (files.pooling, files.max_length, files.is_lower_cased, files.subfolder) == (
        "cls",
        20,
        True,
        "0_Transformer",
    )
    assert [module.kind for module in files.modules] == ["Normalize"]
    assert "no weights: no model.safetensors in" in refused(folder)
    shutil.rmtree(folder / "0_Transformer")
    assert "has no config.json in 0_Transformer" in refused(folder)


def test_the_oldest_folders_have_a_version_in_place_of_a_configuration(write, tmp_path):
    folder = write(subfolder="0_Transformer")
    write_json(folder / "config.json", {"__version__": "0.3.8"})
    assert_same_as_sentence_transformers(folder, tmp_path / "export")


def test_a_card_of_the_hub_is_taken_over(write, tmp_path):
    from huggingface_hub import ModelCard

    folder = write()
    metadata = "base_model: owner/base\nlicense: mit\nlanguage:\n- en\n- de\ndatasets:\n- snli\ntags:\n- mine"
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n# A model\n", encoding="utf-8")
    card = ModelCard.load(Encoder.from_pretrained(str(folder)).save_pretrained(tmp_path / "export") / "README.md")
    assert (card.data.base_model, card.data.license, card.data.language) == ("owner/base", "mit", ["en", "de"])
    assert card.data.library_name == "sentence-transformers" and "fastadv" in card.data.tags
    for text in ("---\n: [\n---\n", "---\n- a list\n---\n", "no metadata\n---\nlicense: mit\n---\n", ""):
        (folder / "README.md").write_text(text, encoding="utf-8")
        assert find_model(str(folder)).card == {}


def test_a_model_without_a_base_on_the_hub_names_none(minilm_dir, tiny_bert_dir):
    assert find_model("demo:minilm").card["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert find_model("demo:minilm").card["license"] == "apache-2.0"
    assert "base_model" not in find_model(str(tiny_bert_dir)).card


def test_other_weights_of_layers_are_refused_and_layers_that_are_not_handed_out_have_no_effect(write, tmp_path):
    export = Encoder.from_pretrained(str(write()), pooling="first_last").save_pretrained(tmp_path / "export")
    assert find_model(str(export)).files.pooling == "first_last"
    change(export, "config.json", output_hidden_states=False)
    assert_same_as_sentence_transformers(export, tmp_path / "again")
    assert find_model(str(export)).files.pooling == "mean"
    change(export, "config.json", output_hidden_states=True)
    save_file({"layer_weights": torch.tensor([1.0, 2.0, 1.0])}, export / "1_WeightedLayerPooling/model.safetensors")
    assert "WeightedLayerPooling and mean pooling" in refused(export)


def test_a_residual_dense_adds_what_it_is_given(write):
    folder = write(after=("Dense",))
    plain = Encoder.from_pretrained(str(folder)).encode_texts(TEXTS)
    change(folder, "2_Dense/config.json", use_residual=True)
    weights = load_file(folder / "2_Dense/model.safetensors")
    assert "expected {'linear.weight'" in refused(folder)
    residual = torch.randn(24, 32)
    save_file({**weights, "residual.weight": residual}, folder / "2_Dense/model.safetensors")
    encoder = Encoder.from_pretrained(str(folder)).eval()
    batch = encoder.pack(TEXTS)
    with torch.no_grad():
        states = encoder.token_states(encoder.embed(batch), batch)
    means = torch.stack([part.mean(0) for part in states.split(batch.lengths.tolist())])
    expected = plain + (means @ residual.T).numpy()
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), expected, rtol=0, atol=1e-4)

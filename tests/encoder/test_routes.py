"""One text, one vector: by ids or embeddings, packed or padded, in a batch or a file, whatever the tokenizer pads."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from fastadv.encoder import Encoder
from tests.encoder.conftest import relative

FAMILIES = ["Bert", "Roberta", "XLMRoberta", "Electra", "Albert", "DistilBert", "MPNet", "DebertaV2", "ModernBert"]
PAD_AT_1 = {"pad_token_id": 1}
TEXTS = ["never", "the film was not very good .", "it is dull"]
SPELLED_OUT = ["the <pad> film was <pad> <pad> good", "<pad>", "never <pad>", "it is dull"]


@pytest.fixture(scope="module")
def roberta_tokenizer(tiny_tokenizer):
    """<s> 0, <pad> 1, </s> 2, <unk> 3 as in RoBERTa, over the words of the tiny BERT."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [word for word in sorted(tiny_tokenizer.get_vocab()) if word[0] not in "[#"]
    vocab = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    roles = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=62, **{f"{role}_token": token for role, token in roles.items()}
    )


@pytest.fixture(params=["as it is", "left padding", "no padding token"])
def tokenizer(request, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    if request.param == "left padding":
        tokenizer.padding_side = "left"
    elif request.param == "no padding token":
        tokenizer.pad_token = None
        assert tokenizer.pad_token_id is None
    return tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_every_route_gives_the_same_vectors(family, tokenizer, family_encoder, padded_reference):
    encoder = family_encoder(family, pooling="mean", tokenizer=tokenizer)
    batch = encoder.pack(TEXTS)
    expected = padded_reference(encoder.hf, batch, "mean")
    assert relative(encoder(batch), expected) < 1e-12
    assert relative(encoder.encode(encoder.embed(batch), batch), expected) < 1e-12
    assert relative(torch.from_numpy(encoder.encode_texts(TEXTS)).double(), expected) < 2**-23
    generic = family_encoder(family, pooling="mean", tokenizer=tokenizer, path="generic")
    assert relative(generic(batch), expected) < 1e-12
    at_words = family_encoder(family, pooling="mean", tokenizer=tokenizer, perturb_at="word")
    words = encoder.hf.get_input_embeddings()(batch.input_ids)
    assert relative(at_words.encode(words, batch), expected) < 1e-12
    lengths = batch.lengths.tolist()
    grid = torch.nn.utils.rnn.pad_sequence(words.split(lengths), batch_first=True)
    if family != "DistilBert":
        by_embeddings = padded_reference(encoder.hf, batch, "mean", inputs_embeds=grid)
        assert relative(by_embeddings, expected) < 1e-12


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert", "MPNet", "Bert"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last"])
def test_a_padding_token_spelled_out_in_a_text(family, pooling, roberta_tokenizer, family_encoder):
    encoder = family_encoder(family, pooling=pooling, tokenizer=roberta_tokenizer, config=PAD_AT_1)
    batch = encoder.pack(SPELLED_OUT)
    assert (batch.input_ids == 1).sum() == 5
    inputs = roberta_tokenizer(SPELLED_OUT, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        output = encoder.hf(**inputs, output_hidden_states=True)
    states = output.last_hidden_state
    if pooling == "first_last":
        states = (states + output.hidden_states[0]) / 2
    mask = inputs["attention_mask"][..., None]
    expected = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1)
    assert relative(encoder(batch), expected) < 1e-12


def test_positions_pass_over_a_padding_token_spelled_out(roberta_tokenizer, family_encoder):
    from fastadv.encoder.positions import position_ids

    encoder = family_encoder("Roberta", tokenizer=roberta_tokenizer, config=PAD_AT_1)
    batch = encoder.pack(["never", *SPELLED_OUT])
    rows = position_ids(batch, encoder.hf.config).split(batch.lengths.tolist())
    assert rows[0].tolist() == [2, 3, 4]
    assert rows[1].tolist() == [2, 3, 1, 4, 5, 1, 1, 6, 7]
    assert rows[2].tolist() == [2, 1, 3]


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "Albert", "MPNet"])
def test_an_export_is_padded_by_others_without_harm(family, tokenizer, family_encoder, tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder = family_encoder(family, dtype=torch.float32, pooling="cls", tokenizer=tokenizer)
    folder = encoder.save_pretrained(tmp_path / "export")
    ours = encoder.encode_texts(TEXTS)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())
    np.testing.assert_array_equal(Encoder.from_pretrained(str(folder)).encode_texts(TEXTS), ours)
    saved = AutoTokenizer.from_pretrained(folder)
    assert saved.padding_side == "right" and saved.pad_token_id is not None
    # The encoder's own tokenizer is left as it was given.
    assert (encoder.tokenizer.padding_side, encoder.tokenizer.pad_token) == (
        tokenizer.padding_side,
        tokenizer.pad_token,
    )

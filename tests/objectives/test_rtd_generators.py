"""What refills masked tokens: its probabilities, what it never fills in, and which generators are refused."""

from dataclasses import replace

import pytest
import torch

from fastadv import UserError
from fastadv.objectives.sentences.rtd_generators import (
    MaskedLanguageModelGenerator,
    UnigramGenerator,
    check_generator,
    make_generator,
)

PACKED = ["bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra", "albert"]


@pytest.fixture(scope="session")
def tiny_masked_lm(tiny_bert_dir, tmp_path_factory):
    """A factory of folders of a random masked language model of one of some types, with the tiny BERT's tokenizer."""
    import transformers

    def make(kind="bert", **changes):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_bert_dir)
        sizes = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, initializer_range=0.2)
        wide = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
        wide["max_position_embeddings"] = 64
        configs = {
            "bert": (transformers.BertConfig, transformers.BertForMaskedLM, wide),
            "roberta": (
                transformers.RobertaConfig,
                transformers.RobertaForMaskedLM,
                {**wide, "max_position_embeddings": 66},
            ),
            "distilbert": (
                transformers.DistilBertConfig,
                transformers.DistilBertForMaskedLM,
                dict(dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64),
            ),
            "xlm-roberta": (
                transformers.XLMRobertaConfig,
                transformers.XLMRobertaForMaskedLM,
                {**wide, "max_position_embeddings": 66},
            ),
            "camembert": (
                transformers.CamembertConfig,
                transformers.CamembertForMaskedLM,
                {**wide, "max_position_embeddings": 66},
            ),
            "data2vec-text": (
                transformers.Data2VecTextConfig,
                transformers.Data2VecTextForMaskedLM,
                {**wide, "max_position_embeddings": 66},
            ),
            "electra": (transformers.ElectraConfig, transformers.ElectraForMaskedLM, {**wide, "embedding_size": 8}),
            "albert": (transformers.AlbertConfig, transformers.AlbertForMaskedLM, {**wide, "embedding_size": 8}),
        }
        config_class, model_class, own = configs[kind]
        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        model = model_class(config_class(**{**sizes, **own, **changes}))
        # Zero biases and unit LayerNorms would hide one taken for another.
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


def test_unigram_draws_by_frequency_and_no_special_token(tiny_encoder, sentences):
    counts = torch.tensor([50, 10, 30, 0, 60])
    batch = tiny_encoder().pack(sentences * 200)
    masked = torch.ones(batch.num_tokens, dtype=torch.bool)
    filled = UnigramGenerator(counts, special_ids=[0]).fill(batch, masked, "sample")
    share = torch.bincount(filled, minlength=5).double() / batch.num_tokens
    assert share[0] == share[3] == 0
    # About 10,000 draws: a standard deviation of at most 0.005.
    assert batch.num_tokens > 9000
    torch.testing.assert_close(share, torch.tensor([0, 0.1, 0.3, 0, 0.6]).double(), rtol=0, atol=0.025)


def test_unigram_argmax_is_the_commonest_and_draws_repeat_with_the_seed(tiny_encoder, sentences):
    batch = tiny_encoder().pack(sentences)
    masked = torch.ones(batch.num_tokens, dtype=torch.bool)
    generator = UnigramGenerator(torch.tensor([5, 1, 3, 4]), special_ids=[0])
    assert (generator.fill(batch, masked, "argmax") == 3).all()
    fills = []
    for _ in range(2):
        torch.manual_seed(4)
        fills.append(generator.fill(batch, masked, "sample"))
    assert torch.equal(*fills)


def test_unigram_needs_a_token_that_is_not_special():
    with pytest.raises(UserError, match="special tokens alone"):
        UnigramGenerator(torch.tensor([5, 0, 0]), special_ids=[0])


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_packed_logits_equal_the_padded_models(tiny_encoder, tiny_masked_lm, sentences, kind, num_layers):
    encoder = tiny_encoder()
    # A padding token spelt out: the kin of RoBERTa count positions without it.
    batch = encoder.pack([*sentences, "the [PAD] film was slow"])
    generator = make_generator(str(tiny_masked_lm(kind, num_hidden_layers=num_layers)), encoder)
    generator.model.double()
    assert generator.path == "packed"
    # Types the model must not be told: it is given none in the padded pass.
    batch = replace(batch, token_type_ids=torch.ones_like(batch.token_type_ids))
    masked = (torch.rand(batch.num_tokens) < 0.3) & ~batch.is_special
    ids = batch.input_ids.masked_fill(masked, encoder.tokenizer.mask_token_id)
    spans = list(zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True))
    rows = torch.nn.utils.rnn.pad_sequence
    grid = rows([ids[a:b] for a, b in spans], batch_first=True, padding_value=encoder.tokenizer.pad_token_id)
    mask = rows([torch.ones(b - a, dtype=torch.int64) for a, b in spans], batch_first=True)
    with torch.no_grad():
        whole = generator.model(input_ids=grid, attention_mask=mask).logits
    expected = torch.cat([whole[row, : b - a][masked[a:b]] for row, (a, b) in enumerate(spans)])
    torch.testing.assert_close(generator.logits(batch, masked), expected, rtol=1e-10, atol=1e-10)


def test_a_model_of_no_packed_family_runs_padded(tiny_encoder, tiny_masked_lm):
    assert make_generator(str(tiny_masked_lm("distilbert")), tiny_encoder()).path == "padded"


def test_the_last_layer_and_the_head_run_at_masked_tokens_alone(tiny_encoder, tiny_masked_lm, sentences):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    generator = make_generator(str(tiny_masked_lm(num_hidden_layers=2)), encoder)
    masked = (torch.rand(batch.num_tokens) < 0.3) & ~batch.is_special
    num_masked, seen = int(masked.sum()), {}
    first, last = generator.model.bert.encoder.layer
    of_last = last.attention.self
    watched = {"first": first.intermediate, "last": last.intermediate, "query": of_last.query, "key": of_last.key}
    for name, module in {**watched, "head": generator.model.cls}.items():
        module.register_forward_hook(lambda m, args, output, name=name: seen.update({name: len(args[0])}))
    generator.fill(batch, masked, "sample")
    assert seen.pop("first") == seen.pop("key") == batch.num_tokens > num_masked > 0
    assert set(seen.values()) == {num_masked}


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("how", ["sample", "argmax"])
def test_special_tokens_are_never_filled_in_however_likely(tiny_encoder, tiny_masked_lm, sentences, kind, how):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences * 20)
    generator = make_generator(str(tiny_masked_lm(kind)), encoder)
    specials = sorted(set(encoder.tokenizer.all_special_ids) - {encoder.tokenizer.unk_token_id})
    with torch.no_grad():
        generator.model.get_output_embeddings().bias[specials] += 50
    masked = ~batch.is_special
    assert generator.logits(batch, masked).argmax(1).unique().tolist()[0] in specials
    filled = generator.fill(batch, masked, how)
    assert not torch.isin(filled[masked], torch.tensor(specials)).any()
    assert torch.equal(filled[~masked], batch.input_ids[~masked])


def test_ids_and_layout_serve_a_backward_afterwards(tiny_encoder, tiny_masked_lm, sentences):
    """The generator is the first to see the batch; nothing it leaves behind is barred from autograd."""
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    filled = make_generator(str(tiny_masked_lm()), encoder).fill(batch, ~batch.is_special, "sample")
    encoder(replace(batch, input_ids=filled)).sum().backward()
    encoder(batch).sum().backward()
    assert encoder.hf.embeddings.word_embeddings.weight.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "albert", "distilbert"])
def test_the_head_at_masked_tokens_alone_gives_the_models_own_logits(tiny_encoder, tiny_masked_lm, sentences, kind):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    generator = make_generator(str(tiny_masked_lm(kind)), encoder)
    assert isinstance(generator, MaskedLanguageModelGenerator) and not generator.model.training
    masked = (torch.rand(batch.num_tokens) < 0.3) & ~batch.is_special
    logits = generator.logits(batch, masked)
    model, mask_id, start = generator.model, encoder.tokenizer.mask_token_id, 0
    expected = []
    for length in batch.lengths.tolist():
        ids, own = batch.input_ids[start : start + length], masked[start : start + length]
        with torch.no_grad():
            expected.append(model(input_ids=ids.masked_fill(own, mask_id)[None]).logits[0][own])
        start += length
    # float32 and another grouping of sums: a few units in the last place of logits of size 1.
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-4, atol=1e-5)
    assert not logits.requires_grad


def test_a_masked_lm_fills_masked_tokens_alone_by_its_probabilities(tiny_encoder, tiny_masked_lm, sentences):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    generator = make_generator(str(tiny_masked_lm()), encoder)
    masked = torch.zeros(batch.num_tokens, dtype=torch.bool)
    masked[[2, 9]] = True
    specials = sorted(set(encoder.tokenizer.all_special_ids) - {encoder.tokenizer.unk_token_id})
    logits = generator.logits(batch, masked)
    logits[:, specials] = -torch.inf
    assert torch.equal(generator.fill(batch, masked, "argmax")[masked], logits.argmax(1))
    drawn = torch.stack([generator.fill(batch, masked, "sample") for _ in range(2000)])
    assert torch.equal(drawn[:, ~masked], batch.input_ids[~masked].expand(2000, -1))
    share = torch.stack([torch.bincount(drawn[:, at], minlength=logits.shape[1]) for at in (2, 9)]).double() / 2000
    # A standard deviation of at most 0.011.
    torch.testing.assert_close(share, logits.softmax(1).double(), rtol=0, atol=0.055)
    assert not share[:, specials].any()


def test_nothing_masked_needs_no_model(tiny_encoder, tiny_masked_lm, sentences):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    generator = make_generator(str(tiny_masked_lm()), encoder)
    generator.model = None
    masked = torch.zeros(batch.num_tokens, dtype=torch.bool)
    assert torch.equal(generator.fill(batch, masked, "sample"), batch.input_ids)


def test_another_vocabulary_is_refused_with_both_sizes(tiny_encoder, tmp_path):
    """Refused by tokenizer and configuration, before any weight is there."""
    from transformers import BertConfig, BertTokenizerFast

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    BertConfig(vocab_size=6).save_pretrained(tmp_path)
    encoder = tiny_encoder()
    with pytest.raises(UserError) as caught:
        check_generator(str(tmp_path), encoder.tokenizer, 32)
    line = str(caught.value)
    assert line.isprintable() and "vocabulary of 6 tokens" in line and f"of {len(encoder.tokenizer)}" in line
    assert "objective_options.rtd_generator" in line


def test_too_few_positions_are_refused(tiny_encoder, tiny_masked_lm):
    folder = str(tiny_masked_lm(max_position_embeddings=24))
    check_generator(folder, tiny_encoder().tokenizer, 24)
    with pytest.raises(UserError, match="24 positions, fewer than encoder.max_length = 25"):
        check_generator(folder, tiny_encoder().tokenizer, 25)


def test_an_encoder_without_a_head_is_no_generator(tiny_encoder, tiny_bert_dir):
    with pytest.raises(UserError, match="no masked language model, .* weights lack"):
        make_generator(str(tiny_bert_dir), tiny_encoder())


def test_a_missing_generator_is_one_line_under_its_key(tiny_encoder):
    with pytest.raises(UserError, match="objective_options.rtd_generator: model 'no/such-model'"):
        make_generator("no/such-model", tiny_encoder())

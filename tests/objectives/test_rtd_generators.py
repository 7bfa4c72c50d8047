"""What refills masked tokens: its probabilities, what it never fills in, and which generators are refused."""

import pytest
import torch

from fastadv import UserError
from fastadv.objectives.rtd_generators import (
    MaskedLanguageModelGenerator,
    UnigramGenerator,
    check_generator,
    make_generator,
)


@pytest.fixture(scope="session")
def tiny_masked_lm(tiny_bert_dir, tmp_path_factory):
    """A factory of folders of a random masked language model of one of three types, with the tiny BERT's tokenizer."""
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
        }
        config_class, model_class, own = configs[kind]
        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        model_class(config_class(**{**sizes, **own, **changes})).save_pretrained(folder)
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


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
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

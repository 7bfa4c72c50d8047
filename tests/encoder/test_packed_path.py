"""Both paths compute what Hugging Face computes on a padded batch; what the packed one leaves out changes nothing."""

import copy

import pytest
import torch

from tests.encoder.conftest import relative

GENERIC = ["DistilBert", "MPNet", "Deberta", "DebertaV2", "ModernBert"]
PACKED = ["Bert", "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "Electra", "Albert"]
POOLINGS = ["cls", "mean", "first_last"]


@pytest.mark.parametrize("family", [*PACKED, *GENERIC])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_equals_the_padded_model_in_float64(family, pooling, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, pooling=pooling)
    assert encoder.path == ("packed" if family in PACKED else "generic")
    batch = encoder.pack(sentences)
    assert len(set(batch.lengths.tolist())) > 2
    x = encoder.embed(batch)
    assert x.shape == (batch.num_tokens, encoder.embedding_size)
    assert relative(encoder.encode(x, batch), padded_reference(encoder.hf, batch, pooling)) < 1e-12


@pytest.mark.parametrize("family", ["Bert", "Electra", "Albert"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("perturb_at", ["embedding", "word"])
def test_packed_and_generic_agree_at_a_moved_x(family, pooling, perturb_at, family_encoder, sentences):
    results = []
    for path in ("packed", "generic"):
        encoder = family_encoder(family, path=path, pooling=pooling, perturb_at=perturb_at)
        batch = encoder.pack(sentences)
        x = encoder.embed(batch)
        moved = (x + 0.1 * x.flip(1)).detach().requires_grad_()
        h = encoder.encode(moved, batch)
        upstream = torch.linspace(-1, 1, h.numel(), dtype=h.dtype).reshape(h.shape).cos()
        results.append((x, h, encoder.token_states(x, batch), torch.autograd.grad(h, moved, upstream)[0]))
    for one, other in zip(*results, strict=True):
        assert relative(one, other) < 1e-12


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_equals_the_padded_model_in_float32(family, pooling, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, dtype=torch.float32, pooling=pooling)
    gold = family_encoder(family, pooling=pooling)
    gold.hf.load_state_dict({name: value.double() for name, value in encoder.hf.state_dict().items()})
    batch = encoder.pack(sentences)
    exact = padded_reference(gold.hf, batch, pooling)
    padded_error = relative(padded_reference(encoder.hf, batch, pooling).double(), exact)
    # Twice the error of Hugging Face's own float32 pass, plus one unit in the last place.
    assert relative(encoder(batch).double(), exact) < 2 * padded_error + 2**-23


@pytest.mark.parametrize("family", ["Roberta", "Electra", "Albert"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_parameter_gradients_equal_the_padded_models(family, pooling, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, pooling=pooling)
    batch = encoder.pack(sentences)
    upstream = torch.randn(len(sentences), encoder.hidden_size, dtype=torch.float64)
    names, parameters = zip(
        *[(n, p) for n, p in encoder.hf.named_parameters() if not n.startswith("pooler")], strict=True
    )
    expected = torch.autograd.grad(padded_reference(encoder.hf, batch, pooling), parameters, upstream)
    actual = torch.autograd.grad(encoder(batch), parameters, upstream)
    scale = max(grad.abs().max() for grad in expected)
    for name, one, other in zip(names, actual, expected, strict=True):
        # A key bias shifts all logits of a query alike: its gradient is rounding alone.
        assert (one - other).abs().max() < 1e-12 * scale, name


@pytest.mark.parametrize("family", ["Bert", "Electra", "Albert"])
def test_gradient_of_word_rows_equals_inputs_embeds(family, family_encoder, padded_reference, sentences):
    encoder = family_encoder(family, pooling="mean", perturb_at="word")
    batch = encoder.pack(sentences)
    upstream = torch.randn(len(sentences), encoder.hidden_size, dtype=torch.float64)
    x = encoder.embed(batch).detach().requires_grad_()
    assert torch.equal(x, encoder.hf.embeddings.word_embeddings.weight[batch.input_ids])
    (grad,) = torch.autograd.grad(encoder.encode(x, batch), x, upstream)
    grid = torch.zeros(len(sentences), batch.max_seqlen, encoder.embedding_size, dtype=torch.float64)
    spans = list(zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True))
    for row, (a, b) in enumerate(spans):
        grid[row, : b - a] = x[a:b].detach()
    grid.requires_grad_()
    (expected,) = torch.autograd.grad(padded_reference(encoder.hf, batch, "mean", inputs_embeds=grid), grid, upstream)
    expected = torch.cat([expected[row, : b - a] for row, (a, b) in enumerate(spans)])
    assert relative(grad, expected) < 1e-12


@pytest.mark.parametrize("pooling", POOLINGS)
def test_word_and_embedding_perturbation_agree_on_a_clean_pass(pooling, tiny_encoder, sentences):
    at_word, at_embedding = (tiny_encoder(pooling=pooling, perturb_at=where).eval() for where in ("word", "embedding"))
    batch = at_word.pack(sentences)
    assert torch.equal(at_word(batch), at_embedding(batch))


def test_last_layer_for_first_tokens_only_equals_the_whole_layer(tiny_encoder, sentences):
    encoder = tiny_encoder(pooling="cls").eval()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    whole = encoder.token_states(x, batch)[batch.cu_seqlens[:-1].long()]
    assert relative(encoder.encode(x, batch), whole) < 1e-14
    assert relative(encoder.encode(x, batch), encoder.pool(x, encoder.token_states(x, batch), batch)) < 1e-14


@pytest.mark.parametrize("family", PACKED)
def test_last_layer_for_some_rows_equals_the_whole_layer(family, family_encoder, sentences):
    encoder = family_encoder(family)
    batch = encoder.pack(sentences)
    x = encoder.embed(batch).detach().requires_grad_()
    # In no order; none of some sentences, several of others.
    rows = torch.randperm(batch.num_tokens)[: batch.num_tokens // 3]
    upstream = torch.randn(len(rows), encoder.hidden_size, dtype=torch.float64)
    whole = encoder.token_states(x, batch)[rows]
    _, states = encoder._model.first_and_last(x, batch, dropout=False, rows=rows)
    assert relative(states, whole) < 1e-12
    inputs = [x, *(p for n, p in encoder.hf.named_parameters() if n.startswith("encoder."))]
    expected = torch.autograd.grad(whole, inputs, upstream)
    scale = max(grad.abs().max() for grad in expected)
    for one, other in zip(torch.autograd.grad(states, inputs, upstream), expected, strict=True):
        assert (one - other).abs().max() < 1e-12 * scale


def test_last_layer_runs_its_feed_forward_on_first_tokens_only(tiny_encoder, sentences):
    encoder = tiny_encoder(pooling="cls").eval()
    rows = []
    for layer in encoder.hf.encoder.layer:
        layer.intermediate.register_forward_hook(lambda _, args, output: rows.append(len(args[0])))
    batch = encoder.pack(sentences)
    encoder(batch)
    assert rows == [batch.num_tokens, batch.num_sentences]


@pytest.mark.parametrize("family, pooling", [*(("Bert", pooling) for pooling in POOLINGS), ("MPNet", "mean")])
def test_batch_mates_and_order_do_not_matter(family, pooling, family_encoder, sentences):
    encoder = family_encoder(family, pooling=pooling)
    together = encoder(encoder.pack(sentences))
    alone = torch.cat([encoder(encoder.pack([text])) for text in sentences])
    order = torch.randperm(len(sentences)).tolist()
    shuffled = encoder(encoder.pack([sentences[i] for i in order]))
    tolerance = 1e-13 if encoder.path == "packed" else 1e-12
    assert relative(alone, together) < tolerance
    assert relative(shuffled, together[order]) < tolerance


def test_a_sentence_that_is_not_finite_stays_alone(tiny_encoder, sentences):
    encoder = tiny_encoder(pooling="mean").eval()
    batch = encoder.pack(sentences)
    clean = encoder.embed(batch).detach()
    x = clean.clone()
    x[batch.token_sentence == 2] = float("nan")
    x.requires_grad_()
    h = encoder.encode(x, batch)
    (grad,) = torch.autograd.grad(h.square().sum(), x)
    others = torch.arange(len(sentences)) != 2
    assert torch.equal(h[others], encoder.encode(clean, batch)[others])
    assert grad[batch.token_sentence != 2].isfinite().all()
    assert h[2].isnan().all()


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "Albert"])
def test_dropout_sits_where_hugging_face_has_it(family, family_encoder):
    # Without padding both paths draw masks of equal sizes in equal order: one seed, one result.
    config = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    encoder = family_encoder(family, pooling="mean", config=config).train()
    batch = encoder.pack(["the film was not good", "the plot was very dull"])
    assert batch.lengths.tolist() == [7, 7]
    torch.manual_seed(5)
    h = encoder(batch)
    torch.manual_seed(5)
    states = encoder.hf(input_ids=batch.input_ids.view(2, 7)).last_hidden_state
    assert relative(h, states.mean(1)) < 1e-13
    assert relative(h, encoder.eval()(batch)) > 1e-2


@pytest.mark.parametrize("family, pooling", [*(("Bert", pooling) for pooling in POOLINGS), ("DistilBert", "cls")])
def test_dropout_masks_come_back_with_the_generator_state(family, pooling, family_encoder, sentences):
    encoder = family_encoder(family, pooling=pooling).train()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch)
    state = torch.get_rng_state()
    first, second = encoder.encode(x, batch), encoder.encode(x, batch)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(encoder.encode(x, batch), first)
    assert torch.equal(encoder.encode(x, batch), second)


def test_dropout_argument_beats_the_mode_and_leaves_it_alone(tiny_encoder, sentences):
    encoder = tiny_encoder(pooling="mean").train()
    batch = encoder.pack(sentences)
    modes = []
    for module in encoder.hf.modules():
        module.register_forward_hook(lambda m, args, output: modes.append(m.training))
    state = torch.get_rng_state()
    off = encoder.encode(encoder.embed(batch, dropout=False), batch, dropout=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(modes) and all(module.training for module in encoder.modules())
    encoder.eval()
    assert torch.equal(encoder(batch), off)
    assert not torch.equal(encoder.encode(encoder.embed(batch), batch, dropout=True), off)


@pytest.mark.parametrize("family", ["Bert", "Electra", "Albert", "DistilBert"])
def test_dropout_override_reaches_every_family(family, family_encoder, sentences):
    """Also attention that is kept as a function, as DistilBert's."""
    encoder = family_encoder(family, pooling="mean", dropout=0.0).train()
    batch = encoder.pack(sentences)
    assert torch.equal(encoder(batch), encoder.eval()(batch))


def test_dropout_override_sets_every_probability(tiny_encoder):
    config = tiny_encoder(dropout=0.25).hf.config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.25
    high = tiny_encoder(dropout=0.25)
    assert {m.p for m in high.hf.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_bfloat16_is_as_close_as_hugging_faces(pooling, tiny_encoder, padded_reference, sentences):
    exact, half = (tiny_encoder(pooling=pooling).eval() for _ in range(2))
    half.to(torch.bfloat16)
    exact.hf.load_state_dict({name: value.double() for name, value in half.hf.state_dict().items()})
    batch = exact.pack(sentences)
    gold = exact(batch)
    ids_error = relative(padded_reference(half.hf, batch, pooling).double(), gold)
    # Half precision's rounding is noisy; 2**-8 is one unit in the last place.
    assert relative(half(batch).double(), gold) < 2 * ids_error + 2**-8
    # Perturbed embeddings arrive in float32 and are rounded once.
    assert half.encode(half.embed(batch).float(), batch).dtype == torch.bfloat16


def test_bfloat16_gradient_reaches_x_with_dropout(tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.bfloat16).train()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch).detach().float().requires_grad_()
    (grad,) = torch.autograd.grad(encoder.encode(x, batch).float().square().sum(), x)
    assert grad.dtype == torch.float32 and grad.isfinite().all()
    assert (grad.abs().sum(1) > 0).all()


def test_state_dict_is_hugging_faces_and_copies_are_independent(tiny_encoder, sentences):
    encoder = tiny_encoder().eval()
    assert set(encoder.state_dict()) == {f"hf.{name}" for name in encoder.hf.state_dict()}
    assert not any("pooler" in name for name in encoder.state_dict())
    batch = encoder.pack(sentences)
    before = encoder(batch)
    other = copy.deepcopy(encoder)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert torch.equal(encoder(batch), before)
    assert not torch.equal(other(batch), before)


def test_layout_op_gradients(tiny_encoder):
    from fastadv.encoder.attention.layout import first_rows, pad, padding_of, unpad

    batch = tiny_encoder().pack(["never", "the film was good", "it is"])
    padding = padding_of(batch)
    assert padding_of(batch) is padding
    rows = torch.randn(batch.num_tokens, 3, dtype=torch.float64, requires_grad=True)
    grid = torch.randn(3, batch.max_seqlen, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(unpad(pad(rows, padding), padding), rows)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda value: pad(value, padding), rows)
        assert check(lambda value: unpad(value, padding), grid)
        assert check(lambda value: first_rows(value, padding), rows)

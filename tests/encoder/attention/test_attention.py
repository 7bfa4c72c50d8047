"""Every attention computes the same function; those that need a GPU are called as their libraries ask."""

import copy
import inspect
import math
import sys
from types import ModuleType

import pytest
import torch

from fastadv import Trainer, UserError
from fastadv.encoder.attention import kinds as attention_kinds
from fastadv.encoder.attention.kinds import KINDS, choose, self_attention, why_not
from fastadv.encoder.attention.layout import padding_of

NUM_HEADS, HEAD_SIZE = 4, 8


def by_loop(query, key, value, cu_q, cu_k, scale):
    """(T_q, H, d): sentence by sentence, head by head."""
    # In half precision a CPU has rows after the last sentence, which a GPU has not.
    out = torch.zeros_like(query)
    for i in range(len(cu_q) - 1):
        asking, asked = slice(int(cu_q[i]), int(cu_q[i + 1])), slice(int(cu_k[i]), int(cu_k[i + 1]))
        for head in range(query.shape[1]):
            logits = query[asking, head].double() @ key[asked, head].double().T * scale
            out[asking, head] = (logits.softmax(1) @ value[asked, head].double()).to(out.dtype)
    return out


@pytest.fixture
def batch(tiny_encoder, sentences):
    return tiny_encoder().pack(sentences)


def random_rows(batch, first_tokens_only=False, dtype=torch.float64):
    shape = (batch.num_tokens, NUM_HEADS * HEAD_SIZE)
    rows = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
    if first_tokens_only:
        rows[0] = torch.randn(batch.num_sentences, shape[1], dtype=dtype, requires_grad=True)
    return rows


@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("kind", ["matmul", "sdpa"])
def test_equals_a_loop_over_sentences_and_heads(kind, first_tokens_only, batch):
    rows = random_rows(batch, first_tokens_only)
    cu_q = torch.arange(batch.num_sentences + 1) if first_tokens_only else batch.cu_seqlens
    heads = [r.unflatten(1, (NUM_HEADS, HEAD_SIZE)) for r in rows]
    expected = by_loop(*heads, cu_q, batch.cu_seqlens, HEAD_SIZE**-0.5).flatten(1)
    found = self_attention(*rows, padding_of(batch), NUM_HEADS, 0.0, first_tokens_only, kind)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    upstream = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(states, rows, upstream) for states in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("texts", [["never", "the film was good", "it is"], ["it is", "it was"]])
@pytest.mark.parametrize("first_tokens_only", [False, True])
def test_gradients_of_both_orders_are_its_function_s(texts, first_tokens_only, tiny_encoder):
    batch = tiny_encoder().pack(texts)
    rows = [torch.randn(batch.num_tokens, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    if first_tokens_only:
        rows[0] = torch.randn(batch.num_sentences, 4, dtype=torch.float64, requires_grad=True)

    def attend(*rows):
        return self_attention(*rows, padding_of(batch), 2, 0.0, first_tokens_only, "matmul")

    assert torch.autograd.gradcheck(attend, rows)
    assert torch.autograd.gradgradcheck(attend, rows)


@pytest.mark.parametrize("first_tokens_only", [False, True])
def test_drops_the_weights_that_the_fused_one_drops(first_tokens_only, batch):
    rows = random_rows(batch, first_tokens_only)
    results = []
    for kind in ("matmul", "sdpa"):
        torch.manual_seed(3)
        states = self_attention(*rows, padding_of(batch), NUM_HEADS, 0.3, first_tokens_only, kind)
        results.append((states, *torch.autograd.grad(states.square().sum(), rows)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["matmul", "sdpa"])
def test_encoder_runs_the_named_one(kind, tiny_encoder, sentences, monkeypatch):
    ran = []
    for name in ("_matmul", "_sdpa"):
        real = getattr(attention_kinds, name)
        monkeypatch.setattr(attention_kinds, name, lambda *a, name=name, real=real: ran.append(name) or real(*a))
    encoder = tiny_encoder(attention=kind).eval()
    found = encoder(encoder.pack(sentences))
    assert ran == [f"_{kind}"] * encoder.num_layers
    other = tiny_encoder(attention="sdpa" if kind == "matmul" else "matmul").eval()
    torch.testing.assert_close(found, other(other.pack(sentences)), rtol=1e-12, atol=1e-13)


class FlashAttn(ModuleType):
    """Stands in for flash-attn: checks what its kernels ask, and computes the answer by a loop."""

    def __init__(self):
        super().__init__("flash_attn")
        self.calls, self.dtypes = [], set()

    def flash_attn_varlen_func(
        self,
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
    ):
        self.dtypes.add(q.dtype)
        self.calls.append((q.shape, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale))
        return by_loop(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale)


class Varlen(FlashAttn):
    def varlen_attn(self, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self.flash_attn_varlen_func(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, 0.0, scale)


STAND_INS = {"flash_attn": ("flash_attn", FlashAttn), "varlen": ("torch.nn.attention.varlen", Varlen)}


@pytest.fixture(params=["flash_attn", "varlen"])
def stand_in(request, monkeypatch):
    """(kind, its library's stand-in)"""
    name, make = STAND_INS[request.param]
    module = make()
    monkeypatch.setitem(sys.modules, name, module)
    # Without a GPU the kind would be refused before the call.
    monkeypatch.setattr(attention_kinds, "why_not", lambda *arguments: None)
    return request.param, module


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packed_kinds_are_called_rightly_and_give_the_same_vectors(stand_in, pooling, tiny_encoder, sentences):
    kind, module = stand_in
    encoder, plain = tiny_encoder(attention=kind, pooling=pooling).eval(), tiny_encoder(pooling=pooling).eval()
    batch = encoder.pack(sentences)
    x = encoder.embed(batch).detach().requires_grad_()
    h = encoder.encode(x, batch)
    torch.testing.assert_close(h, plain.encode(x, batch), rtol=1e-12, atol=1e-13)
    upstream = torch.randn_like(h)
    ours, theirs = (torch.autograd.grad(e.encode(x, batch), x, upstream)[0] for e in (encoder, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    calls = module.calls[: encoder.num_layers]
    for layer, (shape, cu_q, cu_k, max_q, max_k, dropout_p, scale) in enumerate(calls):
        only_first = pooling == "cls" and layer == len(calls) - 1
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert torch.equal(cu_k, batch.cu_seqlens) and max_k == batch.max_seqlen
        assert torch.equal(cu_q, torch.arange(len(sentences) + 1) if only_first else batch.cu_seqlens)
        assert max_q == (1 if only_first else batch.max_seqlen)
        assert shape == (len(sentences) if only_first else batch.num_tokens, NUM_HEADS, HEAD_SIZE)
        assert dropout_p == 0.0 and math.isclose(scale, HEAD_SIZE**-0.5)


@pytest.mark.parametrize("stage", [0, pytest.param(3, id="3, with a copy to be scored")])
def test_a_run_trains_by_the_named_kind_and_measures_in_float32_by_auto(stand_in, stage, make_config, scored_pairs):
    """Dev scores on the way and at the end, and what a caller has after the run."""
    kind, module = stand_in
    config = make_config(**{"train.max_steps": 2, "dev.data": scored_pairs, "train.eval_every": 1})
    config.engine.attention, config.engine.precision, config.engine.zero_stage = kind, "bf16", stage
    config.encoder.dropout = 0.0
    trainer = Trainer(config)
    trainer.fit()
    assert module.dtypes == {torch.bfloat16}
    num_calls = len(module.calls)
    trainer.encoder.encode_texts(["a film"])
    assert trainer.encoder.attention == "auto" and len(module.calls) == num_calls


def test_flash_attn_is_told_the_dropout(monkeypatch, tiny_encoder, sentences):
    module = FlashAttn()
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(attention_kinds, "why_not", lambda *arguments: None)
    encoder = tiny_encoder(attention="flash_attn", dropout=0.2).train()
    encoder(encoder.pack(sentences))
    assert [call[5] for call in module.calls] == [0.2] * encoder.num_layers


def test_torch_s_own_varlen_takes_such_a_call():
    from torch.nn.attention.varlen import varlen_attn

    inspect.signature(varlen_attn).bind("query", "key", "value", "cu_seq_q", "cu_seq_k", 1, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("varlen", "cpu", torch.bfloat16), ["CUDA", "cpu", "sdpa, matmul"]),
        (("varlen", "cuda", torch.float32), ["bfloat16 and float16", "float32", "sdpa, matmul"]),
        (("varlen", "cuda", torch.bfloat16, 0.1), ["no attention dropout", "0.1", "flash_attn"]),
        (("flash_attn", "cuda", torch.bfloat16), ["flash_attn is not installed", "fastadv[flash]", "sdpa, matmul"]),
    ],
    ids=str,
)
def test_says_why_a_kind_cannot_run_and_what_can(arguments, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setattr(attention_kinds, "_is_installed", lambda module: module != "flash_attn")
    message = why_not(*arguments)
    assert "\n" not in message and all(word in message for word in words)
    assert all(why_not(kind, "cpu", torch.float32) is None for kind in ("auto", "sdpa", "matmul"))


@pytest.mark.parametrize("kind", ["varlen", "flash_attn"])
def test_an_encoder_on_a_cpu_refuses_it_by_name(kind, tiny_encoder, sentences):
    encoder = tiny_encoder(attention=kind)
    with pytest.raises(UserError, match=f"^attention {kind}: .*allowed.*auto, sdpa, matmul$"):
        encoder(encoder.pack(sentences))


@pytest.mark.parametrize("kind", ["varlen", "flash_attn"])
def test_a_run_on_a_cpu_refuses_it_before_anything_loads(kind):
    from fastadv.config.schema import Config
    from fastadv.engine.build import check_machine

    config = Config()
    check_machine(config)
    config.engine.attention, config.engine.precision = kind, "bf16"
    with pytest.raises(UserError, match=f"^engine.attention = {kind}: .*allowed"):
        check_machine(config)


def test_refuses_an_unknown_one_and_any_named_one_on_the_generic_path(tiny_encoder, family_encoder):
    with pytest.raises(UserError, match="attention 'flash' is not one of auto, sdpa, varlen, flash_attn, matmul"):
        tiny_encoder(attention="flash")
    for kind in KINDS[1:]:
        with pytest.raises(UserError, match=f"attention '{kind}' is not possible on the generic path"):
            tiny_encoder(attention=kind, path="generic")
    with pytest.raises(UserError, match="'sdpa' is not one of auto"):
        tiny_encoder(path="generic").attention = "sdpa"
    with pytest.raises(UserError, match="generic path .model type distilbert"):
        family_encoder("DistilBert", attention="sdpa")


def test_a_copy_has_the_same_one(tiny_encoder):
    # The discriminator of replaced token detection is a copy of the encoder.
    assert copy.deepcopy(tiny_encoder(attention="sdpa"))._model.attention == "sdpa"


def test_auto_takes_the_fused_one_where_it_pays():
    float32, half = torch.float32, torch.bfloat16
    assert choose("cuda", half, 32, 0.1, False) == "sdpa"
    assert choose("cpu", float32, 32, 0.0, False) == choose("cpu", half, 512, 0.0, False) == "matmul"
    assert choose("cpu", float32, 512, 0.1, False) == choose("cpu", float32, 512, 0.0, True) == "matmul"
    assert choose("cpu", float32, 512, 0.0, False) == "sdpa"

"""Batches with proposals: texts as they are, K copies of each row, the same from any loader."""

import pickle
from dataclasses import replace

import pytest
import torch

from fastadv.data.packing import PackedBatch
from fastadv.data.raw_texts import RawTexts
from fastadv.encoder import Encoder
from fastadv.engine.build import build_step
from fastadv.engine.training_data import TrainingData
from fastadv.errors import UserError
from tests.small_runs import SENTENCES

TEXT = {
    "objective": "simcse",
    "objective_options": {"text_positive": "instead", "weight_flip": 0.1},
    "perturbation.text.edits": ["typos"],
    "perturbation.text.flips": ["negation"],
    "perturbation.text.num_proposals": 3,
    "perturbation.text.num_flips": 2,
}


def make_data(config):
    encoder = Encoder.from_pretrained(config.encoder.model, "cls", dropout=0.0)
    data = TrainingData(config, encoder, progress=False)
    data.use_variants(build_step(config, encoder, data.text).objective, encoder)
    return data


def tokens_of(batch):
    return [tuple(part.tolist()) for part in batch.input_ids.split(batch.lengths.tolist())]


def everything(batches):
    return [
        (batch.row_ids.tolist(), tokens_of(batch))
        + tuple((side, k, tokens_of(each), each.is_present.tolist()) for side, k, each in flat(batch))
        for batch in batches
    ]


def flat(batch):
    return [(side, k, each) for side, drawn in batch.proposals.items() for k, each in enumerate(drawn)]


def test_each_row_has_its_proposals(make_config):
    data = make_data(make_config(**TEXT))
    pack, proposers = data.variants._pack, {p.side: p for p in data.variants._proposers}
    for epoch in range(2):
        for batch in data.batches(epoch, 0):
            assert {side: len(drawn) for side, drawn in batch.proposals.items()} == {"text": 3, "flip": 2}
            for i, row in enumerate(batch.row_ids.tolist()):
                own = data.variants.texts[row]
                assert tokens_of(batch)[i] == tokens_of(pack([own]))[0]
                for side, k, each in flat(batch):
                    text = proposers[side].of(row, own, epoch)[k]
                    assert each.is_present[i].item() == (text is not None)
                    assert tokens_of(each)[i] == tokens_of(pack([own if text is None else text]))[0]


def test_epochs_and_seeds_differ_and_loaders_do_not(make_config):
    config = make_config(**TEXT)
    first, second = (everything(make_data(config).batches(epoch, 0)) for epoch in (0, 1))
    by_row = [{row: part[1:] for batch in of_epoch for row, part in rows_of(batch)} for of_epoch in (first, second)]
    assert any(by_row[0][row] != by_row[1][row] for row in by_row[0])
    config.data.num_workers = 2
    assert everything(make_data(config).batches(0, 0)) == first
    config.data.num_workers = 0
    assert everything(make_data(config).batches(0, 1)) == first[1:]
    config.train.seed = 1
    assert everything(make_data(config).batches(0, 0)) != first


def rows_of(batch):
    row_ids, own, *sides = batch
    return [(row, (own[i], *[(side, k, tokens[i]) for side, k, tokens, _ in sides])) for i, row in enumerate(row_ids)]


def test_texts_lie_beside_their_tokens(make_config, tmp_path, caplog):
    config = make_config(**TEXT)
    texts = make_data(config).variants.texts
    assert list(texts) == [(sentence,) for sentence in SENTENCES]
    assert list(pickle.loads(pickle.dumps(texts))) == list(texts)
    for outside in (-1, len(SENTENCES)):
        with pytest.raises(IndexError):
            texts[outside]
    (path,) = (tmp_path / "cache").glob("texts-*.arrow")
    before = path.stat().st_mtime_ns
    make_data(config)
    assert path.stat().st_mtime_ns == before
    # Another file: what is mapped must stay as it is.
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:50])
    assert list(make_data(config).variants.texts) == list(texts)
    assert "is damaged" in caplog.text


def test_a_sentence_without_a_token_has_no_row(make_config, tmp_path):
    config = make_config(**TEXT)
    (tmp_path / "sentences.txt").write_text("a film\n\u200b\nnever\n\u200b\u200b\nthe plot was slow\n")
    data = make_data(config)
    assert len(data.variants.texts) == len(data.text)


def test_half_a_surrogate_pair_is_kept(tmp_path):
    path, rows = tmp_path / "texts.arrow", [("a \ud800 b",), ("c",)]
    assert RawTexts.write(path, rows) == 2
    assert list(RawTexts([path, path])) == rows + rows


def test_a_source_that_has_changed_is_one_line(make_config, tmp_path, monkeypatch):
    config = make_config(**TEXT)
    monkeypatch.setattr("fastadv.data.raw_texts._texts_of", lambda *_: iter([("one",)]))
    with pytest.raises(UserError, match="has changed: 1 texts, 12 were tokenised"):
        make_data(config)
    assert not list((tmp_path / "cache").glob("texts-*"))


def test_a_batch_carries_its_proposals_everywhere(tiny_encoder, sentences):
    encoder = tiny_encoder()
    drawn = [replace(encoder.pack(sentences[k:] + sentences[:k]), is_present=torch.ones(7).bool()) for k in range(3)]
    batch = replace(encoder.pack(sentences), proposals={"text": drawn})
    assert batch.to("cpu").proposals["text"][2].input_ids.equal(drawn[2].input_ids)
    for num_parts in (1, 3, 7):
        parts = batch.split(num_parts)
        for k in range(3):
            joined = [tokens for part in parts for tokens in tokens_of(part.proposals["text"][k])]
            assert joined == tokens_of(drawn[k])
    with pytest.raises(ValueError, match="text 0 has 7 sentences, the batch 1"):
        replace(encoder.pack(sentences[:1]), proposals={"text": drawn})


def test_chosen_takes_each_sentence_from_its_batch(tiny_encoder, sentences):
    encoder = tiny_encoder().eval()
    drawn = [
        replace(encoder.pack(sentences[k:] + sentences[:k]), is_present=torch.arange(7) % (k + 2) == 0)
        for k in range(3)
    ]
    index = torch.tensor([2, 0, 1, 1, 2, 0, 0])
    chosen = PackedBatch.chosen(drawn, index, index.tolist())
    assert tokens_of(chosen) == [tokens_of(drawn[k])[i] for i, k in enumerate(index.tolist())]
    assert chosen.is_present.tolist() == [drawn[k].is_present[i].item() for i, k in enumerate(index.tolist())]
    assert chosen.host_lengths == tuple(chosen.lengths.tolist())
    assert chosen.max_seqlen == chosen.lengths.max() and chosen.cu_seqlens.dtype == torch.int32
    whole = encoder.pack([(sentences[k:] + sentences[:k])[i] for i, k in enumerate(index.tolist())])
    for name in ("input_ids", "token_type_ids", "position_ids", "is_special", "cu_seqlens", "sentence_ids"):
        assert torch.equal(getattr(chosen, name), getattr(whole, name)), name
    torch.testing.assert_close(encoder(chosen), encoder(whole))

"""The memory of a large batch in pieces is that of a piece, and of the perturbations that the outer pass waits for."""

import pytest
import torch

from bench.step_cost import StepCounter, bytes_of
from fastadv.config import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.engine.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.rtd import build_detection

VOCABULARY, HIDDEN, PIECE = 1000, 128, 64


@pytest.fixture
def make_large_step(tmp_path):
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from fastadv.encoder import Encoder

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))

    def make(micro_batch_size=None, generator="none"):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=4 * HIDDEN,
            max_position_embeddings=64,
        )
        model = BertModel(config, add_pooling_layer=False)
        encoder = Encoder(model, BertTokenizerFast(str(tmp_path / "vocab.txt")), dropout=0.1)
        objective = resolve_objective("robustsentembed")(HIDDEN, rtd_generator=generator)
        detection = None
        if generator != "none":
            detection = build_detection(objective.detection, encoder, lambda: torch.ones(VOCABULARY))
        perturbation = PerturbationConfig(epsilon_relative=0.1, alpha=0.5, beta=0.4, gamma=0.7, num_steps=1)
        return Step(encoder, objective, perturbation, detection, joint_views=None, micro_batch_size=micro_batch_size)

    return make


def make_batch(num_sentences):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(14, 33, (num_sentences,), generator=generator).tolist()
    tokens = [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return PackedBatch.from_token_lists(tokens, [[True] + [False] * (n - 2) + [True] for n in lengths])


def peak_bytes(step, batch):
    """Of live tensors in forward and backward, parameters and the eta table among them."""
    step.train()
    with StepCounter() as counter:
        step(batch).backward()
        step.commit()
    return counter.peak + bytes_of([*step.parameters(), step.eta_table.table])


@pytest.mark.parametrize("generator, num_sentences, num_perturbations", [("none", 4096, 1), ("unigram", 512, 2)])
def test_many_sentences_in_pieces_of_64(make_large_step, generator, num_sentences, num_perturbations):
    """With replaced token detection eta waits for the outer pass beside delta."""
    of_piece = peak_bytes(make_large_step(generator=generator), make_batch(PIECE))
    batch = make_batch(num_sentences)
    found = peak_bytes(make_large_step(PIECE, generator), batch)
    waiting = num_perturbations * 4 * batch.num_tokens * HIDDEN
    print(f"{generator}: {found / 2**20:.1f} MiB, a piece {of_piece / 2**20:.1f}, waiting {waiting / 2**20:.1f}")
    assert found <= 1.3 * of_piece + waiting


def test_checkpointed_activations_are_fewer(tiny_encoder, make_step, sentences):
    peaks = []
    for checkpoint_activations in (False, True):
        step = make_step(checkpoint_activations=checkpoint_activations, dropout=0.1).step
        peaks.append(peak_bytes(step, step.encoder.pack(sentences * 8)))
    assert peaks[1] < 0.8 * peaks[0]

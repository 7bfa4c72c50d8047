"""The memory of a large batch in pieces is that of a piece, and of the perturbations that the outer pass waits for."""

import pytest

from bench.micro_batches import HIDDEN, make_step, pack, peak_bytes, token_lists

PIECE = 32


@pytest.mark.parametrize("generator, num_sentences, num_perturbations", [("none", 512, 1), ("unigram", 256, 2)])
def test_many_sentences_in_pieces_of_32(generator, num_sentences, num_perturbations):
    """With replaced token detection eta waits for the outer pass beside delta."""
    tokens = token_lists(num_sentences)
    of_piece = peak_bytes(make_step(generator=generator), pack(tokens[:PIECE]))
    batch = pack(tokens)
    found = peak_bytes(make_step(PIECE, generator), batch)
    waiting = num_perturbations * 4 * batch.num_tokens * HIDDEN
    print(f"{generator}: {found / 2**20:.1f} MiB, a piece {of_piece / 2**20:.1f}, waiting {waiting / 2**20:.1f}")
    assert found <= 1.1 * of_piece + waiting

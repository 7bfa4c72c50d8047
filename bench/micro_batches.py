"""A large batch in pieces beside the same batch in one, and beside a batch of a piece's size: memory, time, gradients.

``python -m bench.micro_batches [--sentences 4096] [--piece 64] [--ranks 2] [--whole]``. The encoder has 2 layers of 128
and random weights. ``--ranks`` starts processes over gloo that share the batch out; ``--whole`` runs it in one piece,
too, for time and gradients, which takes its memory.
"""

import argparse
import os
import time
from typing import Optional

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from bench.steps.cost import StepCounter, bytes_of
from fastadv.config.schema import PerturbationConfig
from fastadv.data.batching import rank_rows
from fastadv.data.packing import PackedBatch
from fastadv.engine.step.step import Step
from fastadv.objectives import resolve_objective
from fastadv.objectives.sentences.rtd import build_detection

VOCABULARY, HIDDEN, LAYERS = 1000, 128, 2


def make_step(
    micro_batch_size: Optional[int] = None, generator: str = "none", dropout: float = 0.1, num_steps: int = 1
) -> Step:
    """RobustSentEmbed with eta, in training mode; the same weights each time."""
    from transformers import BertConfig, BertModel

    from fastadv.encoder import Encoder

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=64,
    )
    encoder = Encoder(BertModel(config, add_pooling_layer=False), _Tokenizer(), dropout=dropout)
    objective = resolve_objective("robustsentembed")(HIDDEN, rtd_generator=generator)
    detection = None
    if generator != "none":
        detection = build_detection(objective.needs.detection, encoder, lambda: torch.ones(VOCABULARY))
    # PGD alone: a sign step turns rounding into a whole step.
    perturbation = PerturbationConfig(
        norm="l2", rho=1.0, sigma=0.0, epsilon_relative=0.1, alpha=0.5, gamma=0.7, num_steps=num_steps
    )
    step = Step(encoder, objective, perturbation, detection, joint_views=None, micro_batch_size=micro_batch_size)
    return step.train()


class _Tokenizer:
    """Nothing is tokenised; an encoder asks for the special tokens' ids and how long a text may be."""

    model_max_length = 64
    all_special_ids = [0, 1, 2, 3, 4]
    unk_token_id, mask_token_id = 1, 4

    def num_special_tokens_to_add(self) -> int:
        return 2


def token_lists(num_sentences: int) -> list[list[int]]:
    """14 to 32 random tokens a sentence, 23 on average."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(14, 33, (num_sentences,), generator=generator).tolist()
    return [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def pack(tokens: list[list[int]]) -> PackedBatch:
    return PackedBatch.from_token_lists(
        tokens,
        [[True] + [False] * (len(t) - 2) + [True] for t in tokens],
        sentence_ids=[hash(tuple(t)) for t in tokens],
    )


def peak_bytes(step: Step, batch: PackedBatch) -> int:
    """Of live tensors in forward and backward, parameters and the eta table among them."""
    with StepCounter() as counter:
        step(batch).backward()
        step.commit()
    return counter.peak + bytes_of([*step.parameters(), step.eta_table.table])


def timed(step: Step, batch: PackedBatch) -> tuple[float, dict[str, Tensor]]:
    """CPU seconds of a step, and gradients averaged over ranks."""
    began = time.process_time()
    step(batch).backward()
    seconds = time.process_time() - began
    grads = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
    if dist.is_initialized():
        for grad in grads.values():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
    step.commit()
    return seconds, grads


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest distance of a gradient from the other, over that one's norm; key biases, whose gradient is 0, over
    the largest norm."""
    largest = max(grad.norm() for grad in theirs.values())
    return max(
        float((ours[name] - grad).norm() / (largest if "key.bias" in name else grad.norm()))
        for name, grad in theirs.items()
    )


def measure(rank: int, num_ranks: int, options) -> None:
    torch.set_num_threads(1)
    if num_ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=num_ranks)
    tokens = token_lists(options.sentences)
    batch = pack(tokens[rank_rows(len(tokens), rank, num_ranks)])
    of_piece = peak_bytes(make_step(), pack(tokens[: options.piece])) if num_ranks == 1 else None
    found = peak_bytes(make_step(options.piece), batch)
    lines = [f"rank {rank} of {num_ranks}: {batch.num_sentences} sentences, {batch.num_tokens} tokens"]
    lines.append(f"  in pieces of {options.piece}: peak of live tensors {found / 2**20:.1f} MiB")
    lines.append(f"  of them delta for the outer pass: {4 * batch.num_tokens * HIDDEN / 2**20:.1f} MiB")
    if of_piece is not None:
        lines.append(f"  {options.piece} sentences alone: {of_piece / 2**20:.1f} MiB")
    if options.whole:
        times = {None: [], options.piece: []}
        for _ in range(options.turns):
            grads = {}
            for size in times:
                seconds, grads[size] = timed(make_step(size, dropout=0.0, num_steps=5), batch)
                times[size].append(seconds)
        ratios = [pieces / whole for whole, pieces in zip(*times.values())]
        lines.append(f"  N = 5, pieces / whole, CPU time: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
        lines.append(f"  gradients of pieces from the whole's: {furthest(grads[options.piece], grads[None]):.1e}")
    print("\n".join(lines), flush=True)
    if num_ranks > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=4096, help="of the batch, over all ranks")
    parser.add_argument("--piece", type=int, default=64, help="micro_batch_size")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="also in one piece: time and gradients")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    if options.ranks == 1:
        measure(0, 1, options)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29611")
    torch.multiprocessing.spawn(measure, (options.ranks, options), nprocs=options.ranks)


if __name__ == "__main__":
    main()

"""What a run would do and cost, said before it does anything: ``--dry_run``."""

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Mapping, Optional

from fastadv.config.commands import encoding_words
from fastadv.config.schema import Config
from fastadv.data.labelled.find import open_labelled
from fastadv.data.mixture import describe_sources, weighted_sources
from fastadv.data.sources.find import open_source
from fastadv.data.variants.text_pairs import read_pairs
from fastadv.data.variants.word_sets import WordSets
from fastadv.distributed.devices import device_type
from fastadv.engine.checkpoints.checkpoint import describe_moves, read_state
from fastadv.engine.checkpoints.checkpoint_folders import newest_checkpoint
from fastadv.engine.checkpoints.run_folder import check_run_folder, describe_adversary
from fastadv.engine.selection import dev_score
from fastadv.errors import UserError
from fastadv.evaluation.before_after.text_attack import why_not_attacked
from fastadv.evaluation.text.training_attack import check_attack
from fastadv.launch.checks import check_encoder
from fastadv.planning.cards import CARDS, LINKS, Card
from fastadv.planning.costs import MEAN_LENGTH_SHARE, BatchSize, StepCosts, find_costs
from fastadv.planning.memory import memory
from fastadv.planning.model_shape import NoShape
from fastadv.planning.wire import bytes_sent, traffic

UTILISATION = 0.35
"""share of a card's peak that a run is assumed to reach where nothing was measured"""
_SENTENCES_UNKNOWN = 10**6

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class PlanOptions:
    """What a dry run may be told about a machine and a text that it does not look at."""

    card: Optional[str] = None
    """a name in CARDS"""
    link: str = "ib200"
    """a name in LINKS"""
    num_gpus: int = 1
    mean_length: Optional[float] = None
    """tokens a sentence"""
    num_sentences: Optional[int] = None
    """of the training text"""
    utilisation: float = UTILISATION

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "PlanOptions":
        """From texts of the command line; the number of GPUs is the launcher's where it is not given.

        Raises:
            UserError: one line that names the option and what is allowed.
        """
        values: dict = {"num_gpus": int(os.environ.get("WORLD_SIZE", "1"))}
        for name, table in (("card", CARDS), ("link", LINKS)):
            if name in given:
                values[name] = given[name].lower()
                if values[name] not in table:
                    raise UserError(f"--{name} = {given[name]}: expected one of {', '.join(table)}")
        for name, kind, lowest, highest, allowed in (
            ("num_gpus", int, 1, 10**7, "a whole number of at least 1"),
            ("num_sentences", int, 2, 10**15, "a whole number of at least 2"),
            ("mean_length", float, 1, 10**6, "a number of tokens of at least 1"),
            ("utilisation", float, 1e-9, 1, "a number above 0, at most 1"),
        ):
            if name in given:
                try:
                    values[name] = kind(given[name])
                except ValueError:
                    values[name] = math.nan
                if not lowest <= values[name] <= highest:
                    raise UserError(f"--{name} = {given[name]}: expected {allowed}")
        return cls(**values)


OPTION_NAMES = tuple(PlanOptions.__dataclass_fields__)


def describe_plan(config: Config, options: PlanOptions = PlanOptions()) -> str:
    """Some lines for the user. Reads names, models' configurations and dev data, no training text and no weights, and
    writes nothing.

    Raises:
        UserError: encoder, data, dev data or run folder that are not what they should be.
    """
    check_encoder(config)
    return "\n".join([*_what_is_done(config), "", *_what_it_costs(config, options)])


def _what_is_done(config: Config) -> list[str]:
    encoder, data, train, evaluation = config.encoder, config.data, config.train, config.evaluation
    for source in weighted_sources(data.train):
        if data.label_field is None:
            open_source(source.path, data.field, data.split, data.positive_field, data.negative_field, data.quoting)
        else:
            open_labelled(source.path, data.label_field, data.field, data.pair_field, data.split, **data.reading)
    if data.label_field is None:
        dev_score(config.dev.data, data.quoting)
    elif config.dev.data != "none":
        open_labelled(config.dev.data, data.label_field, data.field, data.pair_field, config.dev.split, **data.reading)
    if data.word_sets is not None:
        word_sets = WordSets.load(data.word_sets)
    if data.pairs is not None:
        num_pairs = len(read_pairs(data.pairs))
    if evaluation.enabled:
        open_source(evaluation.held_out, data.field, evaluation.held_out_split, quoting=data.quoting)
        if evaluation.word_sets is not None:
            WordSets.load(evaluation.word_sets)
    folder = Path(train.output_dir).expanduser()
    check_run_folder(config)
    checkpoint = newest_checkpoint(folder)
    moves = [] if checkpoint is None else describe_moves(read_state(checkpoint)[1].config, asdict(config))
    length = f"{train.max_steps} steps" if train.max_steps else f"{train.num_epochs} passes over the data"
    batches = f"{train.accumulation_steps} x " if train.accumulation_steps > 1 else ""
    options = "".join(f", {name} {value}" for name, value in config.objective_options.items())
    measured = f"{evaluation.num_sentences} sentences of {evaluation.held_out}, before and after"
    if evaluation.num_attacked_texts:
        why = why_not_attacked(evaluation, encoder.pooling)
        measured += (
            f"; DeepWordBug on {evaluation.num_attacked_texts} texts" if why is None else f"; DeepWordBug n/a: {why}"
        )
    return [
        f"encoder     {encoder.model}, {encoding_words({**vars(encoder), 'prompt': encoder.prompt or ''})}",
        f"data        {describe_sources(data.train)}"
        + (f", the first {data.max_sentences:,} sentences" if data.max_sentences else "")
        + (f", classes in {data.label_field}" if data.label_field is not None else ""),
        *(
            [f"word sets   {len(word_sets.synonyms):,} words with synonyms, {len(word_sets.antonyms):,} with antonyms"]
            if data.word_sets
            else []
        ),
        *([f"pairs       {num_pairs:,} of {data.pairs}, unpaired texts: {data.unpaired}"] if data.pairs else []),
        f"objective   {config.objective}{options}",
        f"adversary   {describe_adversary(config)}",
        f"training    {length} of {batches}{train.batch_size} sentences, learning rate {config.optimizer.lr:g}, "
        f"ZeRO {config.engine.zero_stage}, {config.engine.precision}, seed {train.seed}",
        "weights     " + ("the last" if config.dev.data == "none" else f"the best on {config.dev.data}"),
        "evaluation  " + (measured if evaluation.enabled else "none"),
        f"run folder  {folder}" + (f", going on from {checkpoint.name}" if checkpoint else ""),
        # What the files hold is read by a run alone.
        *(f"            if the content is the same, of {move}" for move in moves),
    ]


def _what_it_costs(config: Config, options: PlanOptions) -> list[str]:
    try:
        costs, batch = find_costs(config), BatchSize.assumed(config, options.mean_length)
    except NoShape as error:
        return [f"costs       not known: {error}"]
    if batch.num_sentences < options.num_gpus:
        raise UserError(
            f"train.batch_size = {batch.num_sentences}: expected at least --num_gpus, {options.num_gpus}: every GPU "
            "takes a share of each batch"
        )
    if costs.objective.needs.epoch_attack is not None:
        check_attack(costs.objective.needs.epoch_attack)
    return [
        *_parameters(costs),
        _batch(config, batch, options),
        *_flops(costs, batch, options),
        *_memory(costs, batch, options),
        *_wire(costs, batch, options),
        _hours(costs, batch, options),
    ]


def _parameters(costs: StepCosts) -> list[str]:
    encoder, all_of_it = costs.encoder, costs.parameters
    rows = [
        ("encoder, embeddings", encoder.embeddings.total, encoder.embeddings.trained),
        ("encoder, layers", encoder.body.total, encoder.body.trained),
        ("heads", costs.head.total, costs.head.trained),
        ("second encoder", costs.second_encoder.total, costs.second_encoder.trained),
        ("discriminator", costs.discriminator.total, costs.discriminator.trained),
        ("generator, frozen", costs.num_generator_parameters, 0),
        ("victim, frozen", 0 if costs.victim is None else costs.victim.parameters.total, 0),
    ]
    lines = [f"parameters  {all_of_it.total / 1e6:,.2f} M, of which {all_of_it.trained / 1e6:,.2f} M are trained"]
    for name, total, trained in rows:
        if total:
            share = "" if trained in (0, total) else f", {trained / 1e6:,.2f} M trained"
            lines.append(f"            {name:22}{total / 1e6:10,.2f} M{share}")
    return lines


def _batch(config: Config, batch: BatchSize, options: PlanOptions) -> str:
    mean = batch.num_tokens / batch.num_sentences
    how = "as given" if options.mean_length is not None else f"assumed: {MEAN_LENGTH_SHARE} of encoder.max_length"
    return (
        f"batch       {batch.num_sentences:,} sentences of {mean:.1f} tokens ({how}), "
        f"{batch.num_tokens:,.0f} in all, on {_gpus(options)}"
    )


def _gpus(options: PlanOptions) -> str:
    card = "GPU" if options.card is None else CARDS[options.card].name
    return f"{options.num_gpus:,} {card}" + ("s" if options.num_gpus > 1 and options.card is None else "")


def _flops(costs: StepCosts, batch: BatchSize, options: PlanOptions) -> list[str]:
    parts, num_batches = costs.flops(batch), costs.config.train.accumulation_steps
    lines = [
        f"step        {_tera(num_batches * sum(parts.values()))}" + (f", {num_batches} batches" * (num_batches > 1))
    ]
    repeated = costs.recomputed(batch, options.num_gpus)
    if repeated:
        parts["forwards run again"] = repeated
    lines += [f"            {name:28}{_tera(num_batches * flops)}" for name, flops in parts.items()]
    return lines


def _tera(flops: float) -> str:
    return f"{flops / 1e12:10,.4f} TFLOP"


_COLUMNS = ("weights", "gradients", "optimizer", "eta_table", "generator", "buffers", "activations", "total", "on_host")


def _memory(costs: StepCosts, batch: BatchSize, options: PlanOptions) -> list[str]:
    engine = costs.config.engine
    is_fused = engine.attention != "matmul" and (options.card is not None or device_type() == "cuda")
    names = "".join(f"{name.replace('_', ' '):>12}" for name in _COLUMNS)
    lines = [f"memory      GiB a GPU by ZeRO stage; * is the config's\n            {'':7}{names}"]
    for stage in range(4):
        found = memory(costs, batch, options.num_gpus, stage, is_fused)
        mark = "*" if stage == engine.zero_stage else " "
        numbers = "".join(f"{getattr(found, name) / GIB:12.3f}" for name in _COLUMNS)
        lines.append(f"            {mark} {stage:<5}{numbers}")
    if options.card is not None:
        has = CARDS[options.card].memory_gb
        needs = memory(costs, batch, options.num_gpus, None, is_fused).total / 1e9
        verdict = "fits" if needs < 0.9 * has else "does not fit, or barely"
        lines.append(f"            {needs:.1f} of the card's {has} GB: {verdict}")
    return lines


def _wire(costs: StepCosts, batch: BatchSize, options: PlanOptions) -> list[str]:
    if options.num_gpus == 1:
        return ["wire        nothing, on one GPU"]
    parts = traffic(costs, batch, options.num_gpus)
    sent = bytes_sent(parts, options.num_gpus)
    rate, link = LINKS[options.link]
    lines = [
        f"wire        {sent / MIB:,.2f} MiB sent by each GPU a step, in rings; {sent / rate / 1e6:,.2f} ms at "
        f"{rate:g} GB/s ({link})"
    ]
    for part in parts:
        lines.append(
            f"            {part.part:24}{part.how:>16}{part.payload / MIB:12,.3f} MiB of tensors, "
            f"{part.sent(options.num_gpus) / MIB:,.3f} MiB sent"
        )
    return lines


def num_steps(config: Config, num_sentences: Optional[int]) -> Optional[int]:
    """Optimizer steps of the run; None where that takes a number of sentences and none is known."""
    train = config.train
    if train.max_steps is not None:
        return train.max_steps
    if num_sentences is None:
        return None
    return train.num_epochs * -(-num_sentences // train.batch_size) // train.accumulation_steps


def seconds_a_step(
    costs: StepCosts, batch: BatchSize, num_gpus: int, card: Card, utilisation: float
) -> Optional[float]:
    """Of computing, not of sending; None where the card has no units for the precision."""
    peak = card.peak_flops(costs.config.engine.precision)
    if peak is None:
        return None
    flops = sum(costs.flops(batch).values()) + costs.recomputed(batch, num_gpus)
    return costs.config.train.accumulation_steps * flops / (num_gpus * peak * utilisation)


def _hours(costs: StepCosts, batch: BatchSize, options: PlanOptions) -> str:
    config = costs.config
    if options.card is None:
        return "hours       no card is named: --card " + "|".join(CARDS)
    card = CARDS[options.card]
    seconds = seconds_a_step(costs, batch, options.num_gpus, card, options.utilisation)
    if seconds is None:
        return f"hours       {card.name} has no units for {config.engine.precision}"
    known = config.data.max_sentences if options.num_sentences is None else options.num_sentences
    steps, basis = num_steps(config, known), ""
    if steps is None:
        steps, basis = num_steps(config, _SENTENCES_UNKNOWN), f" for each {_SENTENCES_UNKNOWN:,} sentences"
    sending = 0.0
    if options.num_gpus > 1:
        parts = traffic(costs, batch, options.num_gpus)
        sending = bytes_sent(parts, options.num_gpus) / (LINKS[options.link][0] * 1e9)
    peak = card.peak_flops(config.engine.precision) / 1e12
    return (
        f"hours       {steps * seconds / 3600:,.2f}{basis}: {steps:,} steps of {1e3 * seconds:,.1f} ms at "
        f"{options.utilisation:.0%} of {peak:,.1f} TFLOP/s ({config.engine.precision}; assumed, see docs/scaling.md)"
        + (f"; {steps * (seconds + sending) / 3600:,.2f} where sending overlaps nothing" if sending else "")
    )

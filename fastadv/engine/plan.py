"""What a run would do, said before it does anything: ``--dry_run``."""

from pathlib import Path

from fastadv.config import Config
from fastadv.data.labelled_sources import open_labelled
from fastadv.data.mixture import describe_sources, weighted_sources
from fastadv.data.sources import open_source
from fastadv.engine.checkpoint_folders import newest_checkpoint
from fastadv.engine.run_folder import check_run_folder, describe_adversary
from fastadv.engine.selection import dev_score


def describe_plan(config: Config) -> str:
    """A few lines for the user. Reads names and dev data, no training text and no weights, and writes nothing.

    Raises:
        UserError: data, dev data or run folder that are not what they should be.
    """
    encoder, data, train, evaluation = config.encoder, config.data, config.train, config.evaluation
    for source in weighted_sources(data.train):
        if data.label_field is None:
            open_source(source.path, data.field, data.split, data.positive_field, data.negative_field)
        else:
            open_labelled(source.path, data.label_field, data.field, data.pair_field, data.split)
    dev_score(config.dev.data)
    if evaluation.enabled:
        open_source(evaluation.held_out, data.field, evaluation.held_out_split)
    folder = Path(train.output_dir).expanduser()
    check_run_folder(config)
    checkpoint = newest_checkpoint(folder)
    length = f"{train.max_steps} steps" if train.max_steps else f"{train.num_epochs} passes over the data"
    batches = f"{train.accumulation_steps} x " if train.accumulation_steps > 1 else ""
    options = "".join(f", {name} {value}" for name, value in config.objective_options.items())
    measured = f"{evaluation.num_sentences} sentences of {evaluation.held_out}, before and after"
    lines = [
        f"encoder     {encoder.model}, {encoder.pooling} pooling, at most {encoder.max_length} tokens",
        f"data        {describe_sources(data.train)}"
        + (f", the first {data.max_sentences:,} sentences" if data.max_sentences else "")
        + (f", classes in {data.label_field}" if data.label_field is not None else ""),
        f"objective   {config.objective}{options}",
        f"adversary   {describe_adversary(config)}",
        f"training    {length} of {batches}{train.batch_size} sentences, learning rate {config.optimizer.lr:g}, "
        f"ZeRO {config.engine.zero_stage}, {config.engine.precision}, seed {train.seed}",
        "weights     " + ("the last" if config.dev.data == "none" else f"the best on {config.dev.data}"),
        "evaluation  " + (measured if evaluation.enabled else "none"),
        f"run folder  {folder}" + (f", going on from {checkpoint.name}" if checkpoint else ""),
    ]
    return "\n".join(lines)

"""``fastadv word-sets``: parsing only. What it makes is `fastadv.evaluation.resources.word_sets_build`."""

import argparse
from pathlib import Path

from fastadv.cli.flags import add_flags, read_settings
from fastadv.cli.parts import add_command, check_json
from fastadv.config.commands import WordSetFiles, WordSetSettings
from fastadv.errors import UserError


def add_word_sets(commands) -> None:
    """Adds the subcommand."""
    parser = add_command(
        commands, "word-sets", _word_sets, "make synonym and antonym sets from word vectors and WordNet"
    )
    add_flags(parser, WordSetFiles)
    add_flags(parser, WordSetSettings)


def _word_sets(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.resources.attack_data import attack_data_folder
    from fastadv.evaluation.resources.word_sets_build import make_word_sets, read_plain_sets
    from fastadv.evaluation.resources.wordnet import open_wordnet

    files, settings = read_settings(arguments, WordSetFiles), read_settings(arguments, WordSetSettings)
    out = check_json(files.out)
    vectors_out = None if files.vectors_out is None else Path(files.vectors_out).expanduser()
    if vectors_out is not None and (vectors_out.suffix != ".npz" or not vectors_out.parent.is_dir()):
        raise UserError(
            f"--vectors_out {files.vectors_out!r}: expected a file that ends in .npz, in a folder that exists"
        )
    if not -1 <= settings.min_cosine <= 1:
        raise UserError(f"--min_cosine {settings.min_cosine:g}: expected a cosine, from -1 to 1")
    compared = None if files.compare is None else read_plain_sets(files.compare)
    attack_data = attack_data_folder(files.attack_data)
    wordnet = open_wordnet(attack_data)
    if arguments.dry_run:
        fitted = " counter-fitted to WordNet" if files.counter_fit else ""
        checked = f", checked in {files.texts}," if files.texts is not None else ""
        print(f"would make word sets of {files.vectors}{fitted}{checked} into {out}")
        return
    for line in make_word_sets(
        files.vectors,
        out,
        wordnet,
        settings,
        files.counter_fit,
        vectors_out,
        compared,
        progress=True,
        texts=files.texts,
        encoder=files.encoder,
        attack_data=attack_data,
    ):
        print(line)

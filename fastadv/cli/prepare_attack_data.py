"""``fastadv prepare-attack-data``: parsing only. What it does is `fastadv.evaluation.resources.attack_data`."""

import argparse
import sys

from fastadv.cli.parts import add_command


def add_prepare_attack_data(commands) -> None:
    """Adds the subcommand."""
    about = "lay what TextAttack reads (NLTK's data, WordNet) into one local folder, from package indexes alone"
    parser = add_command(commands, "prepare-attack-data", _prepare, about)
    parser.add_argument(
        "--out", metavar="DIR", help="the folder (default: $FASTADV_ATTACK_DATA, else ~/.cache/fastadv/attack-data)"
    )
    parser.add_argument(
        "--from",
        dest="packages_dir",
        metavar="DIR",
        help="take the packages' files (two wheels and a deb) from this folder, and ask no network",
    )


def _prepare(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.resources.attack_data import attack_data_folder, check_out, prepare
    from fastadv.evaluation.resources.attack_data_sources import SOURCES, find_packages

    out = attack_data_folder(arguments.out)
    if arguments.dry_run:
        is_there = check_out(out) is not None
        if arguments.packages_dir is None:
            origin = "by pip and apt-get: " + ", ".join(source.requirement for source in SOURCES)
        else:
            origin = "from " + ", ".join(str(path) for path in find_packages(arguments.packages_dir).values())
        print(f"would {'check' if is_there else 'make'} attack data at {out}, {origin}")
        return
    print(prepare(out, arguments.packages_dir, say=lambda line: print(line, file=sys.stderr)))

"""``fastadv prepare-attack-data``: parsing only. What it does is `fastadv.evaluation.resources.attack_data`."""

import argparse
import sys
from functools import partial

from fastadv.cli.parts import add_command
from fastadv.config.text_attack import TEXTATTACK_RECIPES


def add_prepare_attack_data(commands) -> None:
    """Adds the subcommand."""
    about = "lay what TextAttack reads (NLTK's data, WordNet) into one local folder, from package indexes alone"
    parser = add_command(commands, "prepare-attack-data", _prepare, about)
    parser.add_argument(
        "--out", metavar="DIR", help="the folder (default: $FASTADV_ATTACK_DATA, else ~/.cache/fastadv/attack-data)"
    )
    parser.add_argument(
        "--recipe",
        choices=list(TEXTATTACK_RECIPES),
        help="lay only what this recipe reads: deepwordbug reads stop words alone, of one wheel (default: all)",
    )
    parser.add_argument(
        "--from",
        dest="packages_dir",
        metavar="DIR",
        help="take the packages' files (two wheels and a deb) from this folder, and ask no network",
    )


def _prepare(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.resources.attack_data import attack_data_folder, check_out, prepare
    from fastadv.evaluation.resources.attack_data_sources import find_packages, sources_of

    out, sources = attack_data_folder(arguments.out), sources_of(arguments.recipe)
    if arguments.dry_run:
        is_there = check_out(out) is not None
        if arguments.packages_dir is None:
            tools = "pip and apt-get" if any(source.is_debian for source in sources) else "pip"
            origin = f"by {tools}: " + ", ".join(source.requirement for source in sources)
        else:
            origin = "from " + ", ".join(str(path) for path in find_packages(arguments.packages_dir, sources).values())
        print(f"would {'check' if is_there else 'make'} attack data at {out}, {origin}")
        return
    say = partial(print, file=sys.stderr)
    print(prepare(out, arguments.packages_dir, say, arguments.recipe))

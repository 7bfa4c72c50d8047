"""What the subcommands that attack share: the options of labelled texts and of attacks on text, and what they make."""

import argparse
import sys
from typing import Any, Dict, Optional

from fastadv.cli.parts import count_from

# As `fastadv.evaluation.text.attack.DEFAULT_MAX_SECONDS`, which is not imported before it is needed.
_MAX_SECONDS = 120.0


def add_labelled_options(parser, has_pairs: bool = True) -> None:
    """``--split``, ``--field`` and ``--label_field``, with ``has_pairs`` also ``--pair_field``."""
    parser.add_argument("--split", default="test", help="the split of a named dataset (default: test)")
    parser.add_argument("--field", default="text", help="the column of the text (default: text)")
    parser.add_argument("--label_field", default="label", help="the column of the class (default: label)")
    if has_pairs:
        parser.add_argument("--pair_field", help="the column of the second text of pairs")


def labelled_texts(arguments: argparse.Namespace, source: str, **draw: Any):
    """`fastadv.evaluation.text.attacked_data.AttackedData` of what `add_labelled_options` added.

    Args:
        draw: what is drawn from it: ``max_texts``, ``seed`` and ``labels``, as there.
    """
    from fastadv.evaluation.text.attacked_data import AttackedData

    return AttackedData(
        source=source,
        split=arguments.split,
        field=arguments.field,
        label_field=arguments.label_field,
        pair_field=getattr(arguments, "pair_field", None),
        **draw,
    )


def add_text_search_options(parser, what: str) -> None:
    """The limits of a search and what the recipes read; ``what`` is attacked: a text, a pair."""
    parser.add_argument("--max_queries", type=count_from(1), help=f"queries {what} (default: no limit)")
    parser.add_argument(
        "--max_seconds", type=float, default=_MAX_SECONDS, help=f"seconds {what}, 0 for no limit (default: 120)"
    )
    parser.add_argument("--mlm", metavar="DIR", help="a masked language model, for bae and bert-attack")
    parser.add_argument("--attack_data", metavar="DIR", help="what `fastadv prepare-attack-data` wrote")
    parser.add_argument("--word_vectors", metavar="FILE", help="for textfooler, textbugger and a2t")
    parser.add_argument("--word_sets", metavar="FILE", help="what `fastadv word-sets` wrote, for antonym and synonym")


def text_search(arguments: argparse.Namespace) -> Dict[str, Any]:
    """What `add_text_search_options` added, ``--seed`` and ``--batch_size``, as `TextAttackSettings` names them."""
    return {
        "max_queries": arguments.max_queries,
        "max_seconds": arguments.max_seconds or None,
        "seed": arguments.seed,
        "batch_size": arguments.batch_size,
        "word_sets": arguments.word_sets,
        "mlm": arguments.mlm,
        "word_vectors": arguments.word_vectors,
        "attack_data": arguments.attack_data,
    }


def run_or_describe(run, arguments: argparse.Namespace) -> Optional[dict]:
    """``run.run()``, or with ``--dry_run`` a check and a line of what it would do, and None."""
    if arguments.dry_run:
        run.check()
        print(run.describe())
        return None
    return run.run(progress=sys.stderr.isatty())

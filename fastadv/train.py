"""Trains an encoder: ``deepspeed fastadv/train.py --config F [--key value ...]``.

``torchrun fastadv/train.py``, ``python fastadv/train.py`` and ``fastadv train`` do the same. A mistake in what was
given ends the run with one line on stderr and status 2; training that ran into a NaN, or a disk that is full, with one
line and status 1. SIGTERM, SIGHUP and SIGUSR1 end it with a checkpoint, one line on stdout and status 0.
"""

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence

if __package__ in (None, ""):
    # Run as a file: Python put fastadv/ first on sys.path, where its modules would pass for top-level ones.
    _package = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != _package]
    sys.path.insert(0, str(_package.parent))
    # An installed fastadv_kernels brings its compiled ops; the bare sources serve only where there is none.
    if importlib.util.find_spec("fastadv_kernels") is None:
        sys.path.insert(1, str(_package.parent / "kernels"))

from fastadv.distributed.launchers import adopt_launcher, told_rank
from fastadv.errors import SaveFailed, UserError, require_docstrings
from fastadv.files.terminal_log import send_log_to_terminal

if TYPE_CHECKING:
    from fastadv.config.schema import Config

# As `fastadv encode` and `fastadv evaluate` spell them.
_SHORT = {name: f"encoder.{name}" for name in ("prompt", "prompt_name")}

_SECONDS_FOR_FIRST_RANK = 10.0
# What launchers take to notice a rank that ended, and to kill the others, of which one line is enough then.
_SECONDS_FOR_LAUNCHER = 3.0


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs one training and returns the exit status.

    Args:
        argv: the arguments after the program's name; by default those of this process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        require_docstrings()
        if "-h" in argv or "--help" in argv:
            from fastadv.launch.help import help_text, named_objective

            print(help_text(named_objective(argv)))
            return 0
        return _run(argv)
    except UserError as error:
        return _end(str(error), 2)
    except KeyboardInterrupt as error:
        from fastadv.distributed.signals import ORDERLY

        number = getattr(error, "signal_number", signal.SIGINT)
        if number in ORDERLY:
            # Who sends it wants the run to end, and it has; nothing failed.
            if told_rank() == 0:
                print(f"fastadv: {error}", flush=True)
            return 0
        return _end(str(error) or "interrupted", 128 + number)
    except RuntimeError as error:
        if not _is_explained(error):
            raise
        from fastadv.distributed.processes import OtherRankFailed

        is_others = isinstance(error, OtherRankFailed)
        return _end(str(error), 1, _SECONDS_FOR_LAUNCHER if is_others else None)


def read_arguments(argv: Sequence[str]) -> tuple["Config", dict[str, Optional[str]]]:
    """The checked configuration of a command line, and what else it has: dry_run and its options, print_config.

    Raises:
        UserError: one line that names what was given and what is allowed.
    """
    from fastadv.launch.load import build_config, split_overrides

    # DeepSpeed's launcher adds --local_rank to what the user typed, torch.distributed.launch --local-rank; the
    # environment says the same.
    flags, names = ["dry_run", "print_config"], ["config", "local_rank", "local-rank"]
    if "--dry_run" in argv:
        from fastadv.dry_run import OPTION_NAMES

        names += OPTION_NAMES
    pairs = [(_SHORT.get(key, key), value) for key, value in split_overrides(argv, flags, names)]
    files = [value for key, value in pairs if key == "config"]
    settings = {key: value for key, value in pairs if key in (*flags, *names) and key != "config"}
    overrides = {key: value for key, value in pairs if key not in (*flags, *names)}
    return build_config(files, overrides, [*flags, *names]), settings


def _run(argv: list[str]) -> int:
    from fastadv.config.schema import to_yaml
    from fastadv.launch.checks import check_encoder

    adopt_launcher()
    if told_rank() == 0:
        send_log_to_terminal()
    config, settings = read_arguments(argv)
    # Every rank checks what was given; the first says what there is to say.
    if "print_config" in settings:
        if told_rank() == 0:
            print(to_yaml(config), end="")
        return 0
    check_encoder(config)
    if "dry_run" in settings:
        from fastadv.dry_run import PlanOptions, describe_plan
        from fastadv.engine.build import check_machine, choose_kernels

        options = PlanOptions.parse(settings)
        # A named card is another machine's.
        if options.card is None:
            choose_kernels(config)
            check_machine(config)
        if told_rank() == 0:
            print(describe_plan(config, options))
        return 0
    from fastadv.distributed.processes import is_first_rank, shutdown, world_size
    from fastadv.distributed.signals import ending_at_once
    from fastadv.engine.loop import Trainer
    from fastadv.files.disk import disk_errors_explained

    is_done = False
    try:
        outside = "stopped outside of training; the same command goes on from the last checkpoint, if there is one"
        with ending_at_once(outside), disk_errors_explained(Path(config.train.output_dir).expanduser()):
            folder = Trainer(config).fit()
        is_done = True
    finally:
        # A rank that fails leaves when it has spoken: its leaving ends the others, and a launcher then this one.
        if is_done or world_size() == 1:
            shutdown(wait=is_done)
    if is_first_rank():
        print(f"run folder: {folder} (report.html, model/)")
    return 0


def _is_explained(error: RuntimeError) -> bool:
    """Whether the message says all: a NaN, vectors all alike, a disk that takes no more, or another rank's error."""
    from fastadv.distributed.processes import OtherRankFailed
    from fastadv.distributed.zero import NonFiniteUpdate
    from fastadv.engine.guards import TooManySkips
    from fastadv.engine.monitor.collapse import Collapsed
    from fastadv.perturbation import NonFiniteGradient

    explained = NonFiniteUpdate, NonFiniteGradient, TooManySkips, Collapsed, OtherRankFailed, SaveFailed
    return isinstance(error, explained)


def _end(message: str, status: int, seconds_for_others: Optional[float] = None) -> int:
    """One line on stderr, by the first rank alone where it fails too.

    A launcher kills all ranks once one has ended. So the others leave the first its time to speak, and speak
    themselves only if they are still there: then the mistake is theirs alone.
    """
    rank = told_rank()
    if rank:
        time.sleep(_SECONDS_FOR_FIRST_RANK if seconds_for_others is None else seconds_for_others)
    message = " ".join(message.split())
    print(f"fastadv: rank {rank}: {message}" if rank else f"fastadv: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

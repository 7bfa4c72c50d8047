"""The subcommand ``report``. Parsing only."""

import sys

from fastadv.cli.parts import add_command, check_out_folder


def add_report(commands) -> None:
    about = "one page of runs, evaluations and attacks, with its pictures and tables"
    parser = add_command(commands, "report", _report, about)
    parser.add_argument("folders", metavar="DIR", nargs="+", help="a run's folder, an evaluation's, or an attack's")
    parser.add_argument(
        "--out",
        help="a folder, or a file that ends in .html (default: the folder itself; of several, report/ in this one)",
    )


def _report(arguments) -> None:
    from fastadv.report.write import describe_report, place_of, write_whole_report

    check_out_folder(str(place_of(arguments.folders, arguments.out).parent))
    if arguments.dry_run:
        print("\n".join(describe_report(arguments.folders, arguments.out)))
        return
    path, notes = write_whole_report(arguments.folders, arguments.out)
    for note in notes:
        print(f"fastadv report: {note}", file=sys.stderr)
    print(path)

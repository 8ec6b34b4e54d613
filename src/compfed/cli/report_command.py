"""`compfed report`: the page of a run that has finished."""

from __future__ import annotations

import argparse
from pathlib import Path

from compfed._utils.files import check_writable, owner_only
from compfed.cli.help_text import example_text
from compfed.cli.local_commands import Commands
from compfed.cli.overwriting import add_overwrite, check_new


def add_commands(commands: Commands) -> None:
    """Add the command of this file."""
    parser = commands.add_parser(
        "report",
        help="write the result of a run as one HTML page",
        description="Write the result of a run as one HTML page that works offline, on a phone and in print. RUN is the folder of a "
        "fit, of a run over a network, of `compfed compare` or of `compfed reproduce`.",
        **example_text(
            (("the page of a fit, again, under another name", "compfed report results/fit --out for-the-board.html"),)
        ),
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a run, or its result.json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page to write (default: RUN/report.html)")
    add_overwrite(parser.add_argument)
    parser.set_defaults(run=report)


def report(args: argparse.Namespace) -> int:
    """Run `compfed report`; return its exit status."""
    from compfed.report.page import write_report

    if args.out is not None:
        check_writable(args.out.parent, f"--out {args.out}")
        check_new(args.out, args)
    with owner_only():
        print(f"Report: {write_report(args.folder, args.out)}")
    return 0

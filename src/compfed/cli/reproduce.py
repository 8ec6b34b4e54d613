"""`compfed reproduce`: every figure of the paper, and a check of every claim."""

from __future__ import annotations

import argparse
from pathlib import Path

from compfed.cli.options import Commands, integer, output_folder


def add(commands: Commands) -> None:
    """Add the options of this command."""
    reproduce = commands.add_parser(
        "reproduce",
        help="reproduce every figure of the paper and check every claim",
        description="Reproduce every figure of the paper and check every claim. Exit status 1 when a claim fails.",
    )
    reproduce.add_argument("--quick", action="store_true", help="smaller data and fewer rounds, under a minute")
    reproduce.add_argument(
        "--out", type=Path, default=Path("results/reproduce"), metavar="DIR", help="default: %(default)s"
    )
    reproduce.add_argument(
        "--seeds", type=integer, metavar="K", help="seeds for mini-batch runs (default: 5, quick: 2)"
    )
    reproduce.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from compfed.studies.paper.claims import claims_table
    from compfed.studies.paper.reproduce import reproduce

    claims = reproduce(output_folder(args.out), quick=args.quick, seeds=args.seeds)
    failed = sum(not claim.holds for claim in claims)
    print(claims_table(claims))
    print(f"\n{len(claims) - failed} of {len(claims)} claims hold. Report: {args.out / 'report.html'}")
    return 1 if failed else 0

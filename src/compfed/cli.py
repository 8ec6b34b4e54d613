"""The command line: parses, calls, prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from compfed import __version__
from compfed.errors import Divergence, InputError, MissingExtra


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compfed", description="Composite federated learning.")
    parser.add_argument("--version", action="version", version=f"compfed {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    reproduce = commands.add_parser(
        "reproduce",
        help="reproduce every figure of the paper and check every claim",
        description="Reproduce every figure of the paper and check every claim. Exit status 1 when a claim fails.",
    )
    reproduce.add_argument("--quick", action="store_true", help="smaller data and fewer rounds, under a minute")
    reproduce.add_argument("--out", type=Path, default=Path("results/reproduce"), metavar="DIR", help="default: %(default)s")
    reproduce.add_argument("--seeds", type=int, metavar="K", help="seeds for mini-batch runs (default: 5)")
    reproduce.set_defaults(run=_reproduce)
    return parser


def _reproduce(args: argparse.Namespace) -> int:
    from compfed.experiments.reproduce import claims_table, reproduce

    if args.out.exists() and not args.out.is_dir():
        raise InputError(f"--out {args.out} is a file; give the name of a folder.")
    claims = reproduce(args.out, quick=args.quick, seeds=args.seeds)
    failed = sum(not claim.holds for claim in claims)
    print(claims_table(claims))
    print(f"\n{len(claims) - failed} of {len(claims)} claims hold. Report: {args.out / 'report.html'}")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `compfed`; a user's mistake ends with one line on stderr and status 2."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (InputError, MissingExtra, Divergence) as problem:
        print(f"compfed {args.command}: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

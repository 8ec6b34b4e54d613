"""`compfed list`: the methods and their references."""

from __future__ import annotations

import argparse

from compfed.cli.options import Commands, method_names


def add(commands: Commands) -> None:
    """Add the options of this command."""
    listing = commands.add_parser("list", help="list what there is")
    listing.add_argument("what", choices=["algorithms", "references"])
    listing.add_argument("--methods", metavar="A,B,...", help="names, or module:Class (default: all)")
    listing.add_argument("--markdown", action="store_true", help="as the README has it")
    listing.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from compfed._utils.text import markdown_table, text_table
    from compfed.algorithms import find
    from compfed.studies.method_table import HEADER, SOLVER_HEADER, entries, references, solver_rows

    names = method_names(args.methods)
    table = markdown_table if args.markdown else text_table
    methods = None if names is None else [find(name) for name in names]
    if args.what == "references":
        print(table(["method", "reference"], references(methods)))
    else:
        print(table(HEADER, [e.cells() for e in entries(methods)]))
        if methods is None:
            print("\n" + table(SOLVER_HEADER, solver_rows()))
    return 0

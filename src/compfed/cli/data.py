"""`compfed data describe`: sizes, labels and differences of the sites in data files."""

from __future__ import annotations

import argparse
from pathlib import Path

from compfed.cli.options import Commands
from compfed.errors import InputError


def add(commands: Commands) -> None:
    """Add the options of this command."""
    data = commands.add_parser("data", help="look at data files").add_subparsers(metavar="COMMAND", required=True)
    describe = data.add_parser(
        "describe",
        help="sizes, labels and differences of the sites",
        description="Print sizes and labels of the sites, and how far they differ. One file per site; with --site, "
        "the files are one table whose column COL names the site.",
    )
    describe.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files, or a folder of them")
    describe.add_argument("--label", metavar="COL", help="column of labels (CSV and Parquet need it)")
    describe.add_argument("--site", metavar="COL", help="column that names the site of each row")
    describe.add_argument("--drop", metavar="A,B,...", help="columns to leave out")
    describe.add_argument("--format", choices=["csv", "parquet", "svmlight"], help="default: by the file's ending")
    describe.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from compfed.data import describe, from_files, from_svmlight
    from compfed.data.readers import SVMLIGHT_ENDINGS

    if args.format == "svmlight" or (args.format is None and args.paths[0].suffix in SVMLIGHT_ENDINGS):
        named = [option for option in ("label", "site", "drop") if getattr(args, option) is not None]
        if named:
            raise InputError(f"--{named[0]} is for CSV and Parquet; svmlight files have no named columns.")
        sites = from_svmlight(args.paths)
    elif args.label is None:
        raise InputError("--label COL is needed for CSV and Parquet; for svmlight files say --format svmlight.")
    else:
        drop = args.drop.split(",") if args.drop else ()
        sites = from_files(args.paths, args.label, drop=drop, site=args.site, format=args.format)
    print(describe(sites))
    return 0

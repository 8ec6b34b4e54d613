"""`compfed site`: the commands of a site. Nothing of Flower is imported before one of them runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from compfed.cli.options import Commands, needs_flower


def add(commands: Commands) -> None:
    """Add the options of these commands."""
    parser = commands.add_parser("site", help="take part in a federation across a network, as a site (compfed[flower])")
    steps = parser.add_subparsers(metavar="COMMAND", required=True)
    init = steps.add_parser("init", help="make the key of this site and a site.toml")
    init.add_argument("--name", required=True, help="the name of this site, as agreed with the operator")
    init.add_argument("--superlink", required=True, metavar="HOST:PORT", help="from the operator")
    init.add_argument("--folder", type=Path, default=Path("."), metavar="DIR", help="default: this folder")
    init.set_defaults(run=needs_flower(_init))
    for name, run, text in (
        ("check", _check, "read the settings and the table, and say what would happen"),
        ("run", _run, "connect to the operator and reply to queries, until interrupted"),
    ):
        made = steps.add_parser(name, help=text, description=text)
        made.add_argument(
            "--config", type=Path, default=Path("site.toml"), metavar="site.toml", help="default: %(default)s"
        )
        made.set_defaults(run=needs_flower(run))


def _init(args: argparse.Namespace) -> int:
    from compfed.network.site_settings import init

    paths, line, fingerprint = init(args.folder, args.name, args.superlink)
    for path in paths:
        print(path)
    print(f"\nSend this line to the operator. It is public:\n\n{line} {args.name}\n")
    print(f"Its fingerprint, to compare by telephone: {fingerprint}")
    print(
        f"Next: put the operator's ca.crt and your table into {args.folder}, and write the label column into {paths[2]}."
    )
    print(f"Then: compfed site check --config {paths[2]}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from compfed.network.site_settings import check

    return 0 if check(args.config) else 1


def _run(args: argparse.Namespace) -> int:
    from compfed.network.site import run_site

    return run_site(args.config)

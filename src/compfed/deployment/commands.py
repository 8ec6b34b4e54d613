"""The commands of an operator and of a site. Nothing of Flower is imported before one of them runs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_federation(commands: Any) -> None:
    parser = commands.add_parser("federation", help="a federation across a network, for its operator (compfed[flower])")
    steps = parser.add_subparsers(metavar="COMMAND", required=True)
    new = steps.add_parser("new", help="write a federation.toml, the Flower app and a site.toml for every site")
    new.add_argument("folder", type=Path, metavar="DIR")
    new.add_argument("--sites", required=True, metavar="A,B,...", help="names of the sites, in order")
    new.add_argument("--superlink", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: %(default)s")
    new.set_defaults(run=_with_flower(_federation_new))
    helps = {
        "keys": (_federation_keys, "make a CA, a certificate for the SuperLink and a key for every site"),
        "serve": (_federation_serve, "run the SuperLink, with TLS and node keys, until interrupted"),
        "run": (_federation_run, "fit the estimator of federation.toml, or go on with a run that was interrupted"),
    }
    for name, (run, text) in helps.items():
        step = steps.add_parser(name, help=text, description=text)
        step.add_argument("folder", type=Path, metavar="DIR", help="the folder of `compfed federation new`")
        if name == "run":
            step.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: DIR/run)")
        step.set_defaults(run=_with_flower(run))
    demo = steps.add_parser("demo", help="the whole thing on this machine: a SuperLink and four sites as processes")
    demo.add_argument(
        "--out", type=Path, default=Path("results/federation"), metavar="DIR", help="default: %(default)s"
    )
    demo.set_defaults(run=_with_flower(_federation_demo))


def add_site(commands: Any) -> None:
    site = commands.add_parser("site", help="run the node of a site, and keep it running (compfed[flower])")
    site.add_argument("--config", type=Path, required=True, metavar="site.toml")
    site.set_defaults(run=_with_flower(_site))


def _federation_new(args: argparse.Namespace) -> int:
    from compfed.deployment.app_folder import new

    for path in new(args.folder, args.sites.split(","), args.superlink):
        print(path)
    return 0


def _federation_keys(args: argparse.Namespace) -> int:
    from compfed.deployment.keys import make_keys
    from compfed.deployment.settings import FederationSettings

    settings = FederationSettings.read(args.folder)
    for path in make_keys(settings.keys, settings.host, settings.sites):
        print(path)
    print("Give every site ca.crt and its own NAME.key, and nothing else. ca.key and server.key stay here.")
    return 0


def _federation_serve(args: argparse.Namespace) -> int:
    from compfed.deployment.operator import serve
    from compfed.deployment.processes import end
    from compfed.deployment.settings import FederationSettings

    process = serve(FederationSettings.read(args.folder))
    try:
        return process.wait()
    finally:
        end(process)


def _federation_run(args: argparse.Namespace) -> int:
    from compfed.deployment.operator import run
    from compfed.deployment.settings import FederationSettings

    folder = args.out or args.folder / "run"
    ended = run(FederationSettings.read(args.folder), folder)
    print(f"{ended['rounds']} rounds. {ended['certificate']}\nModel, trace and audit: {folder}")
    return 0


def _federation_demo(args: argparse.Namespace) -> int:
    from compfed.deployment.loopback import demo

    return 0 if demo(args.out) else 1


def _site(args: argparse.Namespace) -> int:
    from compfed.deployment.site_node import configure_jax, keep_running

    configure_jax(args.config)
    keep_running(args.config)
    return 0


def _with_flower(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, or what to install."""

    def checked(args: argparse.Namespace) -> int:
        importlib.import_module("compfed.federation.flower")
        return run(args)

    return checked

"""`compfed worker`: one of several processes that share the clients of a simulation."""

from __future__ import annotations

import argparse
from pathlib import Path

from compfed.cli.options import Commands, integer


def add(commands: Commands) -> None:
    """Add the options of this command."""
    worker = commands.add_parser(
        "worker",
        help="run a script as one of several processes, on one host or many, that share the clients of a simulation",
        description="Run SCRIPT as one of several processes. Start it once per process, on any hosts that reach each other; in "
        "the script, simulate(..., mesh=jax.devices()) shares the clients out over the devices of all of them, and "
        "every process gets the whole trace. Nothing that passes is encrypted: use a network of your own.",
    )
    worker.add_argument(
        "--coordinator", required=True, metavar="HOST:PORT", help="address of process 0; a free port there"
    )
    worker.add_argument("--process-id", required=True, type=integer, metavar="I", help="0, 1, ..., each once")
    worker.add_argument("--processes", required=True, type=integer, metavar="N", help="how many there are")
    worker.add_argument("--wait", type=integer, default=300, metavar="SECONDS", help="for the others (default: 300)")
    worker.add_argument("script", type=Path, metavar="SCRIPT", help="a Python file, the same for all")
    worker.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    worker.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    from compfed.simulation.sharding import run_script

    run_script(
        args.script, args.arguments, coordinator=args.coordinator, process_id=args.process_id, processes=args.processes,
        wait=args.wait,
    )  # fmt: skip
    return 0

"""The command line: parses, calls, prints."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compfed import __version__
from compfed.errors import Divergence, InputError, MissingExtra
from compfed.network.commands import add_federation, add_site

LARGEST = 2**34  # bytes of numbers that are drawn for a comparison


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compfed", description="Composite federated learning.")
    parser.add_argument("--version", action="version", version=f"compfed {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_reproduce, _add_compare, _add_list, _add_data, add_federation, add_site, _add_worker):
        add(commands)
    return parser


def _whole(text: str) -> int:
    """A whole number that fits 32 bits, as sizes, counts and seeds must."""
    number = int(text)
    if abs(number) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is too large: it must be below 2**32")
    return number


_whole.__name__ = "whole number"  # argparse: invalid whole number value: 'x'


def _add_reproduce(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="reproduce every figure of the paper and check every claim",
        description="Reproduce every figure of the paper and check every claim. Exit status 1 when a claim fails.",
    )
    reproduce.add_argument("--quick", action="store_true", help="smaller data and fewer rounds, under a minute")
    reproduce.add_argument(
        "--out", type=Path, default=Path("results/reproduce"), metavar="DIR", help="default: %(default)s"
    )
    reproduce.add_argument("--seeds", type=_whole, metavar="K", help="seeds for mini-batch runs (default: 5, quick: 2)")
    reproduce.set_defaults(run=_reproduce)


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare methods on one problem with a common budget and fair tuning",
        description="Compare methods on one synthetic problem. Every method gets the same number of candidate step "
        "sizes, each with the whole budget; costs are per client. With --few-rounds, compare five methods as they come.",
    )
    compare.add_argument(
        "--few-rounds",
        action="store_true",
        help="instead: rounds and bytes of ProximalNewton, ProximalBFGS, AcceleratedDecoupledProx, FISTA and DecoupledProx, "
        "nothing tuned, on the paper's problem, a table in raw units and a wide one; takes --quick, --rounds (where a "
        "method is stopped, default: 5000) and --out only",
    )
    compare.add_argument(
        "--methods",
        metavar="A,B,...",
        help="names, or module:Class for a method of your own (default: all that the problem allows)",
    )
    budget = compare.add_mutually_exclusive_group()
    budget.add_argument("--rounds", type=float, metavar="N", help="budget in communication rounds (default: 300)")
    budget.add_argument("--bytes", type=float, metavar="N", help="budget in bytes sent by a client")
    budget.add_argument("--gradients", type=float, metavar="N", help="budget in gradient evaluations of a client")
    compare.add_argument("--tau", type=_whole, default=5, help="local steps (default: 5)")
    compare.add_argument(
        "--candidates", type=_whole, metavar="K", help="step sizes tried per method (default: 7, quick: 3)"
    )
    compare.add_argument("--batch-size", type=_whole, metavar="B", help="mini-batch size (default: full gradients)")
    compare.add_argument("--participants", type=_whole, metavar="K", help="clients per round (default: all)")
    compare.add_argument("--clients", type=_whole, default=30, help="default: 30")
    compare.add_argument("--samples", type=_whole, help="examples per client (default: 500, quick: 100)")
    compare.add_argument("--features", type=_whole, default=60, help="default: 60")
    compare.add_argument("--ridge", type=float, default=0.01, help="default: 0.01")
    compare.add_argument("--l1", type=float, default=1e-4, help="0 for a smooth problem (default: 1e-4)")
    compare.add_argument("--seed", type=_whole, default=0, help="of the data and of mini-batches (default: 0)")
    compare.add_argument(
        "--quick", action="store_true", help="100 examples per client, 3 candidates, 100 rounds, unless given"
    )
    compare.add_argument("--out", type=Path, metavar="DIR", help="default: results/compare, or results/few-rounds")
    compare.set_defaults(run=_compare)


def _add_list(commands: Any) -> None:
    listing = commands.add_parser("list", help="list what there is")
    listing.add_argument("what", choices=["algorithms", "references"])
    listing.add_argument("--methods", metavar="A,B,...", help="names, or module:Class (default: all)")
    listing.add_argument("--markdown", action="store_true", help="as the README has it")
    listing.set_defaults(run=_list)


def _add_data(commands: Any) -> None:
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
    describe.set_defaults(run=_describe)


def _add_worker(commands: Any) -> None:
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
    worker.add_argument("--process-id", required=True, type=_whole, metavar="I", help="0, 1, ..., each once")
    worker.add_argument("--processes", required=True, type=_whole, metavar="N", help="how many there are")
    worker.add_argument("--wait", type=_whole, default=300, metavar="SECONDS", help="for the others (default: 300)")
    worker.add_argument("script", type=Path, metavar="SCRIPT", help="a Python file, the same for all")
    worker.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    worker.set_defaults(run=_worker)


def _folder(path: Path) -> Path:
    """The folder for results, if they can be written there: known before anything is computed."""
    from compfed._utils.files import check_writable

    check_writable(path, f"--out {path}")
    return path


def _reproduce(args: argparse.Namespace) -> int:
    from compfed.studies.paper.claims import claims_table
    from compfed.studies.paper.reproduce import reproduce

    claims = reproduce(_folder(args.out), quick=args.quick, seeds=args.seeds)
    failed = sum(not claim.holds for claim in claims)
    print(claims_table(claims))
    print(f"\n{len(claims) - failed} of {len(claims)} claims hold. Report: {args.out / 'report.html'}")
    return 1 if failed else 0


def _methods(text: str | None) -> list[str] | None:
    """The names given; modules of the current folder can be imported by them."""
    if not text:
        return None
    if os.getcwd() not in sys.path:  # a console script starts with its own folder instead
        sys.path.insert(0, os.getcwd())
    return text.split(",")


def _few_rounds(args: argparse.Namespace) -> int:
    from compfed.studies.few_rounds import few_rounds

    usual = vars(_parser().parse_args(["compare", "--few-rounds"]))
    taken = ("rounds", "quick", "out")
    other = [name for name, value in vars(args).items() if name not in taken and value != usual[name]]
    if other:
        raise InputError(
            f"--{other[0].replace('_', '-')} has no meaning with --few-rounds, whose problems and methods are fixed; it "
            "takes --quick, --rounds and --out."
        )
    out = _folder(args.out or Path("results/few-rounds"))
    rounds = args.rounds if args.rounds is None or args.rounds % 1 else int(args.rounds)
    print(few_rounds(args.quick, rounds, out))
    print(f"\nCurves, traces and JSON: {out}")
    return 0


def _compare(args: argparse.Namespace) -> int:
    if args.few_rounds:
        return _few_rounds(args)
    from compfed import data, losses, regularisers
    from compfed.problem.problem import Problem
    from compfed.studies.compare_methods import compare_methods

    out = _folder(args.out or Path("results/compare"))
    given = {unit: getattr(args, unit) for unit in ("rounds", "bytes", "gradients") if getattr(args, unit) is not None}
    samples, candidates = (100, 3) if args.quick else (500, 7)
    samples = samples if args.samples is None else args.samples
    candidates = candidates if args.candidates is None else args.candidates
    given = given or {"rounds": 100.0 if args.quick else 300.0}
    unit, amount = next(iter(given.items()))
    if not 1 <= amount < math.inf or candidates < 1:
        raise InputError(f"--{unit} {amount:g} and --candidates {candidates} must both be at least 1, and finite.")
    size = 8.0 * args.clients * samples * args.features
    if size > LARGEST:
        raise InputError(
            f"--clients {args.clients}, --samples {samples} and --features {args.features} make {size / 1e9:.3g} GB of "
            f"numbers; at most {LARGEST / 1e9:.3g} GB. Give smaller sizes."
        )
    sites = data.synthetic(clients=args.clients, samples=samples, features=args.features, seed=args.seed)
    g = regularisers.L1(args.l1) if args.l1 else regularisers.Zero()
    problem = Problem(losses.Logistic(ridge=args.ridge), g, sites)
    compared = compare_methods(
        problem, _methods(args.methods), rounds=given.get("rounds"), bytes=given.get("bytes"),
        gradients=given.get("gradients"), tau=args.tau, candidates=candidates, batch_size=args.batch_size,
        participants=args.participants, seed=args.seed, out=out,
    )  # fmt: skip
    for shown in dict.fromkeys([unit, "rounds", "bytes", "gradients"]):
        print(f"\n{shown} per client to reach an accuracy ||x - x*|| / ||x*||\n")
        print(compared.table(shown))
    print(f"\nCurves, traces and JSON: {out}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from compfed._utils.text import markdown_table, text_table
    from compfed.algorithms import find
    from compfed.studies.method_table import HEADER, SOLVER_HEADER, entries, references, solver_rows

    names = _methods(args.methods)
    table = markdown_table if args.markdown else text_table
    methods = None if names is None else [find(name) for name in names]
    if args.what == "references":
        print(table(["method", "reference"], references(methods)))
    else:
        print(table(HEADER, [e.cells() for e in entries(methods)]))
        if methods is None:
            print("\n" + table(SOLVER_HEADER, solver_rows()))
    return 0


def _describe(args: argparse.Namespace) -> int:
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


def _worker(args: argparse.Namespace) -> int:
    from compfed.simulation.sharding import run_script

    run_script(
        args.script, args.arguments, coordinator=args.coordinator, process_id=args.process_id, processes=args.processes,
        wait=args.wait,
    )  # fmt: skip
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `compfed`; a user's mistake ends with one line on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that the locale does not have is written as its number
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    try:
        status = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()  # a reader who has gone is found out here, not when the interpreter ends
        return status
    except BrokenPipeError:  # `compfed list algorithms | head -1`: the reader has what it wanted
        assert sys.stdout is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a program that SIGPIPE ended
    except (InputError, MissingExtra, Divergence, OSError, MemoryError) as problem:
        print(f"compfed {args.command}: {_said(problem)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(f"\ncompfed {args.command}: interrupted. {stopped}".rstrip(), file=sys.stderr)
        return 130


def _said(problem: Exception) -> str:
    """A problem in one line; of the disk or of memory too."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename or 'the output'}: {problem.strerror}."
    if isinstance(problem, MemoryError):
        return f"there is not enough memory ({str(problem) or 'none left'}); give smaller sizes."
    return " ".join(str(problem).split("\n"))


if __name__ == "__main__":
    sys.exit(main())

"""The commands that need no network: `compfed reproduce`, `compare`, `leaderboard`, `list`, `describe` and `worker`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, TypeAlias

from compfed._utils.files import check_writable
from compfed.cli.help_text import example_text
from compfed.cli.json_text import json_text
from compfed.cli.option_text import as_options
from compfed.cli.overwriting import add_overwrite, check_new
from compfed.errors import InputError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # a command adds its parser to these
LARGEST = 2**34  # bytes of numbers that are drawn for a comparison


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    for add in (_add_reproduce, _add_compare, _add_leaderboard, _add_list, _add_describe, _add_worker):
        add(commands)


def integer(text: str) -> int:
    """An integer that fits 32 bits, as sizes, counts and seeds must."""
    number = int(text)
    if abs(number) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is too large: it must be below 2**32")
    return number


integer.__name__ = "whole number"  # argparse: invalid whole number value: 'x'


def _method_names(text: str | None) -> list[str] | None:
    """The methods that were named; classes of modules in the current folder can be named too."""
    if not text:
        return None
    if os.getcwd() not in sys.path:  # a console script starts with its own folder instead
        sys.path.insert(0, os.getcwd())
    return text.split(",")


# --- reproduce ---


def _add_reproduce(commands: Commands) -> None:
    text = "reproduce every figure of the paper and check every claim"
    description = f"{text.capitalize()}. Exit status 1 when a claim fails."
    examples = (
        ("smaller data, under a minute", "compfed reproduce --quick"),
        ("all of it", "compfed reproduce --out paper"),
    )
    parser = commands.add_parser("reproduce", help=text, description=description, **example_text(examples))
    add = parser.add_argument
    add("--quick", action="store_true", help="smaller data and fewer rounds, under a minute")
    add("--out", type=Path, default=Path("results/reproduce"), metavar="DIR", help="default: %(default)s")
    add("--seeds", type=integer, metavar="K", help="seeds for mini-batch runs (default: 5, quick: 2)")
    parser.set_defaults(run=reproduce_paper)


def reproduce_paper(args: argparse.Namespace) -> int:
    """Run `compfed reproduce`; return its exit status."""
    from compfed.studies.paper.claims import claims_table, verdict
    from compfed.studies.paper.reproduce import reproduce

    claims = reproduce(args.out, quick=args.quick, seeds=args.seeds)
    held = sum(claim.holds for claim in claims)
    print(claims_table(claims))
    print(f"\n{verdict(claims)} Report: {args.out / 'report.html'}")
    return 0 if held == len(claims) else 1


# --- compare ---


def _add_compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare methods on one problem with a common budget and fair tuning",
        description="Compare methods on one synthetic problem. Every method gets the same number of candidate step "
        "sizes, each with the whole budget; costs are per client. With --few-rounds, compare five methods as they come.",
        **example_text((
            ("three methods, a small problem", "compfed compare --quick --methods DecoupledProx,FedDA,FISTA"),
            ("a method of your own, by bytes", "compfed compare --methods my_methods:Mine,FISTA --bytes 1e6"),
        )),
    )  # fmt: skip
    add, budget = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    few_rounds = (
        "instead: rounds and bytes of ProximalNewton, ProximalBFGS, AcceleratedDecoupledProx, FISTA and DecoupledProx, "
        "nothing tuned, on the paper's problem, a table in raw units and a wide one; takes --quick, --rounds (where a "
        "method is stopped, default: 5000) and --out only"
    )
    named = "names, or module:Class for a method of your own (default: all that the problem allows)"
    quick = "100 examples per client, 3 candidates, 100 rounds, unless given"
    add("--few-rounds", action="store_true", help=few_rounds)
    add("--methods", metavar="A,B,...", help=named)
    budget("--rounds", type=float, metavar="N", help="budget in communication rounds (default: 300)")
    budget("--bytes", type=float, metavar="N", help="budget in bytes sent by a client")
    budget("--gradients", type=float, metavar="N", help="budget in gradient evaluations of a client")
    budget("--rows", type=float, metavar="N", help="budget in rows that a client reads")
    add("--tau", type=integer, default=5, help="local steps (default: 5)")
    add("--candidates", type=integer, metavar="K", help="step sizes tried per method (default: 7, quick: 3)")
    add(
        "--seeds", type=integer, default=1, metavar="K", help="reporting seeds of mini-batches and samples (default: 1)"
    )
    add(
        "--tuning-seeds",
        type=integer,
        default=1,
        metavar="K",
        help="seeds on which step sizes are compared (default: 1)",
    )
    add("--batch-size", type=integer, metavar="B", help="mini-batch size (default: full gradients)")
    add("--participants", type=integer, metavar="K", help="clients per round (default: all)")
    add("--clients", type=integer, default=30, help="default: 30")
    add("--samples", type=integer, help="examples per client (default: 500, quick: 100)")
    add("--features", type=integer, default=60, help="default: 60")
    add("--ridge", type=float, default=0.01, help="default: 0.01")
    add("--l1", type=float, default=1e-4, help="0 for a smooth problem (default: 1e-4)")
    add("--seed", type=integer, default=0, help="of the data (default: 0)")
    add("--quick", action="store_true", help=quick)
    add("--out", type=Path, metavar="DIR", help="default: results/compare, or results/few-rounds")
    add_overwrite(add)
    parser.set_defaults(run=compare, parser=parser)


def compare(args: argparse.Namespace) -> int:
    """Run `compfed compare`; return its exit status."""
    out = args.out or Path("results", "few-rounds" if args.few_rounds else "compare")
    check_writable(out, f"--out {out}")  # before anything is computed
    check_new(out, args, holds="result.json")
    if args.few_rounds:
        _few_rounds(args, out)
    else:
        _compare_methods(args, out)
    print(f"\nReport: {out / 'report.html'}\nCurves, traces and JSON: {out}")
    return 0


def _compare_methods(args: argparse.Namespace, out: Path) -> None:
    from compfed import data, losses, regularisers
    from compfed.problem.problem import Problem
    from compfed.studies.compare_methods import COSTS, compare_methods

    samples, candidates, rounds = (100, 3, 100.0) if args.quick else (500, 7, 300.0)
    samples = samples if args.samples is None else args.samples
    candidates = candidates if args.candidates is None else args.candidates
    budget: dict[str, Any] = {unit: getattr(args, unit) for unit in COSTS if getattr(args, unit) is not None}
    if (size := 8.0 * args.clients * samples * args.features) > LARGEST:
        raise InputError(
            f"--clients {args.clients}, --samples {samples} and --features {args.features} make {size / 1e9:.3g} GB of "
            f"numbers; at most {LARGEST / 1e9:.3g} GB. Give smaller sizes."
        )
    sites = data.synthetic(clients=args.clients, samples=samples, features=args.features, seed=args.seed)
    g = regularisers.L1(args.l1) if args.l1 else regularisers.Zero()
    problem = Problem(losses.Logistic(ridge=args.ridge), g, sites)
    compared = compare_methods(
        problem, _method_names(args.methods), **budget or {"rounds": rounds}, tau=args.tau, candidates=candidates,
        batch_size=args.batch_size, participants=args.participants, seeds=args.seeds, tuning_seeds=args.tuning_seeds, out=out,
    )  # fmt: skip
    for unit in dict.fromkeys([compared.unit, *(unit for unit in compared.units if unit in COSTS)]):
        print(f"\n{unit} per client to reach a level ({compared.criterion.words})\n\n{compared.table(unit)}")
    print("".join(f"\n{note}" for note in compared.notes))


def _few_rounds(args: argparse.Namespace, out: Path) -> None:
    from compfed.studies.few_rounds import few_rounds

    usual = vars(args.parser.parse_args(["--few-rounds"]))
    taken = ("rounds", "quick", "out", "overwrite")
    other = [name for name, value in vars(args).items() if name not in taken and value != usual.get(name, value)]
    if other:
        raise InputError(
            f"--{other[0].replace('_', '-')} has no meaning with --few-rounds, whose problems and methods are fixed; it "
            "takes --quick, --rounds and --out."
        )
    rounds = args.rounds if args.rounds is None or args.rounds % 1 else int(args.rounds)
    print(few_rounds(args.quick, rounds, out))


# --- leaderboard ---


def _add_leaderboard(commands: Commands) -> None:
    parser = commands.add_parser(
        "leaderboard",
        help="rank every method on a suite of problems by rounds, bytes, rows and simulated seconds",
        description="Tune and run every method on every problem of a suite, with the same number of settings and rounds, and rank "
        "them by what they pay to reach an accuracy. What has finished is kept: the same command goes on from there.",
        **example_text((
            ("four small problems, a few minutes", "compfed leaderboard --quick"),
            ("all of it, with the tables of a folder", "compfed leaderboard --data data --out results/leaderboard"),
            ("a method of your own beside the others", "compfed leaderboard --methods my_methods:Mine"),
            ("results of others on the page, nothing is run", "compfed leaderboard --results leaderboard.json --add theirs.json"),
        )),
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="four small problems, three settings, one seed")
    add("--data", type=Path, metavar="DIR", help="folder with a9a, heart, school and mushrooms; skipped without it")
    add("--problems", metavar="A,B,...", help="problems to run (default: all)")
    add("--methods", metavar="A,B,...", help="methods to run, or module:Class for one of your own (default: all)")
    add("--add", type=Path, action="append", default=[], metavar="FILE", help="results of others; may be repeated")
    add("--results", type=Path, metavar="FILE", help="run nothing: the page of this results file, with those of --add")
    add("--out", type=Path, metavar="DIR", help="default: results/leaderboard, or results/leaderboard-quick")
    parser.set_defaults(run=rank_methods)


def rank_methods(args: argparse.Namespace) -> int:
    """Run `compfed leaderboard`; return its exit status."""
    from compfed.studies.leaderboard.ranks import firsts_table, record_of, totals_table
    from compfed.studies.leaderboard.results import added, read_results
    from compfed.studies.leaderboard.run import leaderboard, write_page

    out = args.out or Path("results", "leaderboard-quick" if args.quick else "leaderboard")
    check_writable(out, f"--out {out}")
    if args.results is not None:
        given = ["--quick"] * args.quick + [f"--{n}" for n in ("data", "problems", "methods") if getattr(args, n)]
        if given:
            raise InputError(f"{given[0]} has no meaning with --results, which runs nothing; leave one of them out.")
        board = added(read_results(args.results), [read_results(path) for path in args.add])
        write_page(board, out)
    else:
        names = None if args.problems is None else [name.strip() for name in args.problems.split(",")]
        board = leaderboard(out, args.quick, args.data, names, _method_names(args.methods), args.add)
        board = added(board, [read_results(path) for path in args.add])
    record = record_of(board)
    print(f"{firsts_table(record)}\n\n{totals_table(record)}")
    print(f"\nReport: {out / 'report.html'}" + ("" if args.results else f"\nResults: {out / 'leaderboard.json'}"))
    return 0


# --- list ---


def _add_list(commands: Commands) -> None:
    text = "the methods: what each sends and computes in a round, what is proved, what our tests check; or their papers"
    examples = (("all methods", "compfed list algorithms"), ("one of them", "compfed list references --methods FISTA"))
    parser = commands.add_parser("list", help=text, description=f"List {text}.", **example_text(examples))
    parser.add_argument("what", choices=["algorithms", "references"])
    parser.add_argument("--json", action="store_true", help="as JSON, one object per method")
    parser.add_argument("--methods", metavar="A,B,...", help="names, or module:Class (default: all)")
    parser.add_argument("--markdown", action="store_true", help="as Markdown")
    parser.set_defaults(run=list_methods)


def list_methods(args: argparse.Namespace) -> int:
    """Run `compfed list`; return its exit status."""
    from compfed._utils.text import markdown_table, text_table
    from compfed.algorithms import find
    from compfed.studies.method_table import HEADER, SOLVER_HEADER, entries, references, solver_rows, table_rows

    names = _method_names(args.methods)
    table = markdown_table if args.markdown else text_table
    methods = None if names is None else [find(name) for name in names]
    if args.json:
        head = ["method", "reference"] if args.what == "references" else HEADER
        rows = references(methods) if args.what == "references" else [e.cells() for e in entries(methods)]
        print(*(json_text(dict(zip(head, row, strict=True))) for row in rows), sep="\n")
    elif args.what == "references":
        print(table(["method", "reference"], references(methods)))
    else:
        print(table(HEADER, table_rows(entries(methods))))
        if methods is None:
            print("\n" + table(SOLVER_HEADER, solver_rows()))
    return 0


# --- describe ---


def _add_describe(commands: Commands) -> None:
    parser = commands.add_parser(
        "describe",
        help="Table 1 of the sites: counts, missing values, means, quantiles, levels, differences",
        description="Print Table 1: counts, missing values, mean, SD, quantiles and levels of every column, over all rows and "
        "at each site. One file per site; with --site, the files are one table whose column COL names the site.",
        **example_text((
            ("one file per hospital", "compfed describe rome.csv oslo.csv lyon.csv --label died"),
            ("one table, without two columns", "compfed describe all.csv --site hospital --drop id,note"),
        )),
    )  # fmt: skip
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files, or a folder of them")
    parser.add_argument("--label", metavar="COL", help="column of labels")
    parser.add_argument("--site", metavar="COL", help="column that names the site of each row")
    parser.add_argument("--drop", metavar="A,B,...", help="columns to leave out")
    parser.add_argument("--format", choices=["csv", "parquet", "svmlight"], help="default: by the file's ending")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=describe_files)


def describe_files(args: argparse.Namespace) -> int:
    """Run `compfed describe`; return its exit status."""
    from compfed.data.readers import SVMLIGHT_ENDINGS, from_svmlight, read_tables
    from compfed.federation.tables import describe, describe_tables

    if args.format == "svmlight" or (args.format is None and args.paths[0].suffix in SVMLIGHT_ENDINGS):
        named = [option for option in ("label", "site", "drop") if getattr(args, option) is not None]
        if named:
            raise InputError(f"--{named[0]} is for CSV and Parquet; svmlight files have no named columns.")
        table = describe(from_svmlight(args.paths))
    else:
        drop = args.drop.split(",") if args.drop else ()
        with as_options():
            table = describe_tables(read_tables(args.paths, site=args.site, drop=drop, format=args.format), args.label)
    print(json_text(table.to_dict()) if args.json else table)
    return 0


# --- worker ---


def _add_worker(commands: Commands) -> None:
    parser = commands.add_parser(
        "worker",
        help="run a script as one of several processes, on one host or many, that share the clients of a simulation",
        description="Run SCRIPT as one of several processes. Start it once per process, on any hosts that reach each other; in "
        "the script, simulate(..., mesh=jax.devices()) shares the clients out over the devices of all of them, and "
        "every process gets the whole trace. Nothing that passes is encrypted: use a network of your own.",
        **example_text((
            ("on the first of two hosts, and on the second",
             "compfed worker --coordinator first:9000 --process-id 0 --processes 2 study.py"),
            ("", "compfed worker --coordinator first:9000 --process-id 1 --processes 2 study.py"),
        )),
    )  # fmt: skip
    add = parser.add_argument
    add("--coordinator", required=True, metavar="HOST:PORT", help="address of process 0; a free port there")
    add("--process-id", required=True, type=integer, metavar="I", help="0, 1, ..., each once")
    add("--processes", required=True, type=integer, metavar="N", help="how many there are")
    add("--wait", type=integer, default=300, metavar="SECONDS", help="for the others (default: 300)")
    add("script", type=Path, metavar="SCRIPT", help="a Python file, the same for all")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")
    parser.set_defaults(run=run_worker)


def run_worker(args: argparse.Namespace) -> int:
    """Run `compfed worker`; return its exit status."""
    from compfed.simulation.sharding import run_script

    names = ("coordinator", "process_id", "processes", "wait")
    run_script(args.script, args.arguments, **{name: getattr(args, name) for name in names})
    return 0

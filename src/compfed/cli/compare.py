"""`compfed compare`: methods side by side on one problem, with a common budget and fair tuning."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from compfed.cli.options import Commands, integer, method_names, output_folder
from compfed.errors import InputError

LARGEST = 2**34  # bytes of numbers that are drawn for a comparison


def add(commands: Commands) -> None:
    """Add the options of this command."""
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
    compare.add_argument("--tau", type=integer, default=5, help="local steps (default: 5)")
    compare.add_argument(
        "--candidates", type=integer, metavar="K", help="step sizes tried per method (default: 7, quick: 3)"
    )
    compare.add_argument("--batch-size", type=integer, metavar="B", help="mini-batch size (default: full gradients)")
    compare.add_argument("--participants", type=integer, metavar="K", help="clients per round (default: all)")
    compare.add_argument("--clients", type=integer, default=30, help="default: 30")
    compare.add_argument("--samples", type=integer, help="examples per client (default: 500, quick: 100)")
    compare.add_argument("--features", type=integer, default=60, help="default: 60")
    compare.add_argument("--ridge", type=float, default=0.01, help="default: 0.01")
    compare.add_argument("--l1", type=float, default=1e-4, help="0 for a smooth problem (default: 1e-4)")
    compare.add_argument("--seed", type=integer, default=0, help="of the data and of mini-batches (default: 0)")
    compare.add_argument(
        "--quick", action="store_true", help="100 examples per client, 3 candidates, 100 rounds, unless given"
    )
    compare.add_argument("--out", type=Path, metavar="DIR", help="default: results/compare, or results/few-rounds")
    compare.set_defaults(run=run, parser=compare)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if args.few_rounds:
        return _few_rounds(args)
    from compfed import data, losses, regularisers
    from compfed.problem.problem import Problem
    from compfed.studies.compare_methods import compare_methods

    out = output_folder(args.out or Path("results/compare"))
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
        problem, method_names(args.methods), rounds=given.get("rounds"), bytes=given.get("bytes"),
        gradients=given.get("gradients"), tau=args.tau, candidates=candidates, batch_size=args.batch_size,
        participants=args.participants, seed=args.seed, out=out,
    )  # fmt: skip
    for shown in dict.fromkeys([unit, "rounds", "bytes", "gradients"]):
        print(f"\n{shown} per client to reach an accuracy ||x - x*|| / ||x*||\n")
        print(compared.table(shown))
    print(f"\nCurves, traces and JSON: {out}")
    return 0


def _few_rounds(args: argparse.Namespace) -> int:
    from compfed.studies.few_rounds import few_rounds

    usual = vars(args.parser.parse_args(["--few-rounds"]))
    taken = ("rounds", "quick", "out")
    other = [name for name, value in vars(args).items() if name not in taken and value != usual.get(name, value)]
    if other:
        raise InputError(
            f"--{other[0].replace('_', '-')} has no meaning with --few-rounds, whose problems and methods are fixed; it "
            "takes --quick, --rounds and --out."
        )
    out = output_folder(args.out or Path("results/few-rounds"))
    rounds = args.rounds if args.rounds is None or args.rounds % 1 else int(args.rounds)
    print(few_rounds(args.quick, rounds, out))
    print(f"\nCurves, traces and JSON: {out}")
    return 0

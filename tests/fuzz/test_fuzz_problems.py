"""Problems, regularisers, runs and commands with odd arguments: refused, or right."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from typing import Any

import numpy as np
from hypothesis import strategies as st
from oracles import Refusal, answered, fuzz
from strategies import EXPONENTS, SEEDS, mostly, odd, spoiled

import compfed as cf
from compfed import regularisers as reg
from compfed._utils.compilation import precision
from compfed.cli import main

LONG: Any = np.longdouble


# --- problems ---

LOSSES = {
    "Squared": (lambda z, y: z - y, 1.0), "Logistic": (lambda z, y: -y / (1 + np.exp(y * z)), 0.25),
    "Huber": (lambda z, y: np.clip(z - y, -LONG(1.35), LONG(1.35)), 1.0),
    "SquaredHinge": (lambda z, y: -2 * y * np.maximum(0, 1 - y * z), 2.0), "Poisson": (lambda z, y: np.exp(z) - y, None),
}  # fmt: skip


def shrunk(v: Any, pull: Any) -> Any:
    size = np.sqrt(v @ v)
    return v * max(1 - pull / size, 0) if size > 0 else v


REGULARISERS: dict[str, Any] = {
    "Zero": lambda lam: (reg.Zero(), lambda v, t: v),
    "L1": lambda lam: (reg.L1(lam), lambda v, t: np.sign(v) * np.maximum(np.abs(v) - t * lam, 0)),
    "Ridge": lambda lam: (reg.Ridge(lam), lambda v, t: v / (1 + t * lam)),
    "NonNegative": lambda lam: (reg.NonNegative(), lambda v, t: np.maximum(v, 0)),
    "Box": lambda lam: (reg.Box(-lam, lam), lambda v, t: np.clip(v, -LONG(lam), LONG(lam))),
    "GroupL2": lambda lam: (
        reg.GroupL2(lam, (0, 0, 1), np.ones(2)), lambda v, t: np.append(shrunk(v[:2], t * lam), shrunk(v[2:], t * lam))
    ),
}  # fmt: skip


@fuzz(
    5,
    loss=st.sampled_from(list(LOSSES)),
    g=st.sampled_from(list(REGULARISERS)),
    lam=st.sampled_from([0.0, 1e-9, 0.01, 0.3, 10.0, 1e6]),
    ridge=mostly(0.0, 0.1, 1e-9, 100.0, of=3),
    seed=SEEDS,
    exponent=mostly(0, *EXPONENTS, of=3),
    uneven=st.booleans(),
)
def test_minimise(loss, g, lam, ridge, seed, exponent, uneven):
    """A certificate that holds is true: the gradient mapping in longer numbers, with a prox written here."""
    rng = np.random.default_rng(seed)
    X, where = rng.standard_normal((9, 3)) * 10.0**exponent, np.arange(9) % 3
    y = {"Poisson": np.round(np.exp(X[:, 0] / 10.0**exponent))}.get(
        loss, np.where(X[:, 0] + rng.standard_normal(9) > 0, 1.0, -1.0)
    )
    slope, curved = LOSSES[loss]
    penalty, prox = REGULARISERS[g](lam)
    p = np.array([0.5, 0.3, 0.2]) if uneven else np.full(3, 1 / 3)

    def call() -> Any:
        problem = cf.Problem(getattr(cf.losses, loss)(ridge=ridge), penalty, cf.data.from_table(X, y, where), weights=p)
        return cf.solve_federated(problem, max_rounds=100)

    found, said = answered(call)
    assert np.isfinite(found.x).all()
    if not found.certificate.holds:
        assert said or not found.converged, f"said to have converged, and {found.certificate} does not hold"
        return
    with np.errstate(all="ignore"):
        A, x, q = X.astype(LONG), found.x.astype(LONG), (p[where] / 3).astype(LONG)
        gradient = A.T @ (q * slope(A @ x, y)) + ridge * x
        curve = np.exp(A @ x) if curved is None else np.full(9, LONG(curved))
        L = LONG(np.linalg.norm(np.asarray(np.sqrt(q * curve)[:, None] * A, float), 2)) ** 2 + ridge
        left = np.linalg.norm(np.asarray((x - prox(x - gradient / L, 1 / L)) * L, float))
    assert left <= 10 * found.certificate.tol * found.certificate.scale, f"{found.certificate} holds; it is {left:.1e}"


WHOLE = cf.Problem(cf.losses.Squared(ridge=0.1), reg.L1(0.1), cf.data.synthetic(clients=3, samples=6, features=3))
BIG = [10**400, 2**63, 1e300]  # no fuzz of sizes: memory and time are not what is looked for here


@fuzz(
    3,
    name=st.sampled_from(
        ["tol", "max_rounds", "x0", "scale", "seed", "tau", "algorithm", "seconds_per_round", "problem"]
    ),
    value=odd,
)
def test_odd_arguments_of_minimise(name, value):
    given: dict[str, Any] = {"problem": WHOLE, "max_rounds": 30} | {name: value}
    found, _ = answered(lambda: cf.solve_federated(**given))
    assert np.isfinite(found.x).all()


@fuzz(
    3,
    name=st.sampled_from(
        [
            "rounds",
            "batch_size",
            "participants",
            "sampling",
            "record_every",
            "seed",
            "x0",
            "x_star",
            "tol",
            "resume",
            "progress",
            "measure",
            "algorithm",
        ]
    ),
    value=odd,
)
def test_odd_arguments_of_simulate(name, value):
    if value is object and name in ("progress", "measure"):
        raise Refusal("a function of the caller's own")
    given: dict[str, Any] = {"algorithm": cf.algorithms.ProximalGradient(eta=0.1), "rounds": 2} | {name: value}
    trace, _ = answered(lambda: cf.simulate(WHOLE, **given))
    assert np.isfinite(trace.x).all()


@fuzz(3, name=st.sampled_from(["loss", "regulariser", "sites", "weights", "dtype", "max_iterations"]), value=odd)
def test_odd_arguments_of_problem_and_solve(name, value):
    given: dict[str, Any] = {
        "loss": WHOLE.loss,
        "regulariser": WHOLE.regulariser,
        "sites": WHOLE.sites,
        "weights": None,
        "dtype": "float64",
    }
    last = {"max_iterations": value} if name == "max_iterations" else {}
    given |= {} if last else {name: value}
    problem, _ = answered(lambda: cf.Problem(**given))
    found, _ = answered(lambda: cf.solve_pooled(problem, **last))
    assert np.isfinite(found.x).all()


# --- regularisers ---

MADE: dict[str, Any] = {
    "L1": lambda a, b: reg.L1(a),
    "ElasticNet": lambda a, b: reg.ElasticNet(a, b),
    "Ridge": lambda a, b: reg.Ridge(a),
    "Box": lambda a, b: reg.Box(a, b),
    "GroupL2": lambda a, b: reg.GroupL2(a, (0, 1, 0, 1)),
    "SparseGroup": lambda a, b: reg.SparseGroup(a, b, (0, 1, 0, 1)),
    "LinfNorm": lambda a, b: reg.LinfNorm(a),
    "SortedL1": lambda a, b: reg.SortedL1(np.array([a, b, b, b])),
    "TotalVariation1D": lambda a, b: reg.TotalVariation1D(a),
    "Nuclear": lambda a, b: reg.Nuclear(a, 2),
    "NuclearBall": lambda a, b: reg.NuclearBall(a, 2),
    "L1Ball": lambda a, b: reg.L1Ball(a),
    "L2Ball": lambda a, b: reg.L2Ball(a),
    "Simplex": lambda a, b: reg.Simplex(a),
    "MCP": lambda a, b: reg.MCP(a, b),
    "SCAD": lambda a, b: reg.SCAD(a, b),
    "Scaled": lambda a, b: a * reg.L1(b),
    "Shifted": lambda a, b: reg.Shifted(reg.L1(a), b),
    "Rescaled": lambda a, b: reg.Rescaled(reg.L1(a), b),
}
NUMBERS = st.sampled_from([0.0, 1e-300, 1e-12, 0.3, 1.0, 1.0, 2.5, 1e12, 1e300])


@fuzz(
    4,
    kind=st.sampled_from(list(MADE)),
    a=NUMBERS | odd,
    b=NUMBERS | odd,
    t=st.sampled_from([1e-6, 0.3, 1.0, 10.0]),
    seed=SEEDS,
    exponent=mostly(0, -150, -30, 30, 150, of=3),
)
def test_three_points(kind, a, b, t, seed, exponent):
    """t (g(u) - g(p)) >= <z - p, u - p> for all u, exactly when p = prox_{t g}(z); p is finite wherever z is."""
    if kind == "SortedL1" and not (isinstance(a, float) and isinstance(b, float)):
        raise Refusal("no list of numbers")
    g, _ = answered(lambda: MADE[kind](a, b))
    if np.ndim(a) + np.ndim(b) > 0:
        raise Refusal("one number per coefficient is not for these four")
    rng = np.random.default_rng(seed)
    z = np.round(rng.standard_normal(4) * 10.0**exponent, 3 - exponent)
    if kind in ("MCP", "SCAD") and t >= 0.9 * float(g.largest_step):
        raise Refusal("not convex there")
    with precision(np.dtype(float)):
        p = np.asarray(g.prox(z, t), float)
    assert np.isfinite(p).all(), f"prox({z}) = {p}"
    if kind in ("MCP", "SCAD"):
        return
    if np.abs(p).max() > 1e150:
        return  # whose squares are no numbers
    size = float(np.abs(z).max())
    weight = max([1.0, *(abs(float(v)) for v in (a, b) if isinstance(v, (float, np.number)) and abs(float(v)) < 1e300)])
    for u in (z, 0 * z, p + size * 1e-3 * rng.standard_normal(4), size * rng.standard_normal(4)):
        with precision(np.dtype(float)):
            gu, gp = float(g(u)), float(g(p))
        slack = (
            1e-9 * (z @ z + p @ p) + 1e-14 * t * size * weight + 1e-6 * (t * gp if np.isfinite(gp) and gp > 0 else 0.0)
        )
        if np.isfinite(gu) and np.isfinite(slack):
            inside = gp if np.isfinite(gp) else 0.0  # a projection may be outside by rounding
            assert t * (gu - inside) - (z - p) @ (u - p) >= -slack


# --- commands ---

CSV = b"age,dose,ill,town\n50,1.5,1,oslo\n61,-2e-3,0,rome\n70,0,1,oslo\n"
TINY = [
    "--clients",
    "3",
    "--samples",
    "6",
    "--features",
    "3",
    "--rounds",
    "2",
    "--candidates",
    "1",
    "--methods",
    "ProximalGradient",
]


def ran(argv: list[str]) -> tuple[int, str]:
    """(exit status, what went to stderr) of a command, run here."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(argv)
        except SystemExit as end:  # argparse's own
            status = int(end.code or 0)
    return status, err.getvalue()


def check_command(argv: list[str]) -> None:
    (status, said), _ = answered(lambda: ran(argv))
    if status == 0:
        return
    assert said.strip(), f"{argv}: status {status} and not a word"
    assert "Traceback" not in said
    assert len(said) < 1500, said
    raise Refusal(said)


@fuzz(
    4,
    content=spoiled(CSV),
    name=st.sampled_from(["rows.csv", "rows.csv.gz", "rows.parquet", "rows.svm", "rows"]),
    options=st.lists(
        st.tuples(
            st.sampled_from(["--label", "--site", "--drop", "--format"]),
            st.sampled_from(["ill", "town", "age", "", "csv", "svmlight", "parquet", "ill,age"]),
        ),
        max_size=3,
    ),
)
def test_describe(content, name, options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(content)
        check_command(["describe", path, *(word for pair in options for word in pair)])


NOT_WHOLE, NOT_A_SIZE = ["", "0", "-1", "nan", "inf", "1.5", "x", "1e300"], ["", "-1", "nan", "inf", "-inf", "x"]
NOT_A_BUDGET = [*NOT_A_SIZE, "0", "0.5", "1e-300"]
WRONG = {
    **dict.fromkeys(["--tau", "--candidates", "--batch-size", "--participants", "--clients", "--samples", "--features"], NOT_WHOLE),
    **dict.fromkeys(["--rounds", "--bytes", "--gradients"], NOT_A_BUDGET), "--ridge": NOT_A_SIZE, "--l1": NOT_A_SIZE,
    "--seed": ["", "-1", "nan", "1.5", "x"], "--methods": ["x", "a,b", ",", "ä$", "no:module", "os:path", "FedAvg,", "os:nothing"],
    "--out": ["/dev/null", "/proc/x"], "--no-such": ["1"],
}  # fmt: skip


@fuzz(3, wrong=st.sampled_from([(option, value) for option, values in WRONG.items() for value in values]))
def test_compare(wrong):
    """One wrong option is refused before anything is computed."""
    with tempfile.TemporaryDirectory() as folder:
        kept = [(k, v) for k, v in zip(TINY[::2], TINY[1::2], strict=True) if k != wrong[0]]
        kept = [(k, v) for k, v in kept if not (k == "--rounds" and wrong[0] in ("--bytes", "--gradients"))]
        check_command(["compare", "--out", os.path.join(folder, "out"), *(w for pair in kept for w in pair), *wrong])
    raise AssertionError(f"compare took {wrong}")


@fuzz(
    3,
    command=st.sampled_from(
        [
            ["list", "algorithms"],
            ["list", "references"],
            ["list"],
            ["reproduce", "--quick", "--out", "/dev/null"],
            ["data"],
            ["reproduce", "--quick", "--seeds", "0"],
            [],
        ]
    ),
    more=st.lists(
        st.sampled_from(
            ["--methods", "--markdown", "", "0", "nan", "x", "ä$", ",", "FISTA", "no:module", "os:path", "--quick", "."]
        ),
        max_size=3,
    ),
)
def test_other_commands(command, more):
    reproduces = command[:1] == ["reproduce"]
    check_command([*command, *more] if not reproduces else [*more, *command])

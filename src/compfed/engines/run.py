"""What all engines share: checking what was asked for, and turning what happened into a trace."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compfed.algorithms.base import Algorithm
from compfed.algorithms.contract import check_contract
from compfed.engines.costs import cost_of_a_round, largest_prox_step
from compfed.engines.measures import COLUMNS, at_models
from compfed.errors import Divergence, InputError
from compfed.problem.problem import Problem
from compfed.problem.regularisers import largest_step
from compfed.tools.precision import precision
from compfed.tools.records import describe
from compfed.trace import State, Trace

Progress = Callable[[int, int], None]  # (rounds done, rounds in all)
# A model this much larger than where it started (or than the reference) has diverged, even if still finite.
BLOW_UP = 1e10


@dataclass(frozen=True)
class Run:
    """A checked request: `algorithm` is ready to run, numbers are whole, arrays have the right shape."""

    problem: Problem
    algorithm: Algorithm
    rounds: int
    batch_size: int | None
    participants: int
    record_every: int
    seed: int
    x0: np.ndarray
    reference: np.ndarray | None
    resume: Trace | None

    @property
    def start(self) -> int:
        """Rounds done before this run."""
        return 0 if self.resume is None or self.resume.state is None else self.resume.state.rounds

    def recorded(self) -> list[int]:
        """Rounds after which something is recorded: every k-th, and the last."""
        marks = list(range(self.start, self.start + self.rounds + 1, self.record_every))
        last = self.start + self.rounds
        return marks if marks[-1] == last else [*marks, last]


def whole(value: Any, name: str, at_least: int, hint: str = "") -> int:
    """`value` as an int, if it is a whole number >= at_least."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise InputError(f"{name}={value!r} must be a whole number >= {at_least}.{hint}")
    return int(value)


def checked(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    batch_size: int | None,
    participants: int | None,
    record_every: int,
    seed: int,
    x0: Any,
    reference: Any,
    resume: Trace | None,
) -> Run:
    """The request, or one clear error before any work is done."""
    if not isinstance(problem, Problem):
        raise InputError(f"the first argument must be a compfed.Problem; got {type(problem).__name__}.")
    if not isinstance(algorithm, Algorithm):
        got = f"{algorithm.__name__} (the class)" if isinstance(algorithm, type) else repr(algorithm)
        raise InputError(f"algorithm must be an instance such as cf.algorithms.DecoupledProx(eta=1.0); got {got}.")
    rounds = whole(rounds, "rounds", 0)
    record_every = whole(record_every, "record_every", 1)
    seed = whole(seed, "seed", 0)
    if seed >= 2**32:
        raise InputError(f"seed={seed} must be below 2**32: that is what a key is made from.")
    if batch_size is not None:
        batch_size = whole(batch_size, "batch_size", 1, " Leave it out for full gradients.")
        smallest = int(problem.sites.sizes.argmin())
        if batch_size > problem.sites.sizes[smallest]:
            raise InputError(
                f"batch_size={batch_size} is larger than the smallest site, {problem.sites.names[smallest]!r} with "
                f"{problem.sites.sizes[smallest]} rows. Use at most that, or leave it out for full gradients."
            )
    k = problem.n if participants is None else whole(participants, "participants", 1)
    if k > problem.n:
        raise InputError(f"participants={k} is more than the {problem.n} clients there are.")
    idle = np.flatnonzero(problem.weights == 0)
    if idle.size and k < problem.n:
        raise InputError(
            f"site {problem.sites.names[idle[0]]!r} has weight 0, and a sample of participants={k} could consist of such "
            "sites only. Leave the site out."
        )
    if resume is not None:
        _check_resume(resume, problem, algorithm, x0)
    prepared = algorithm.prepared(problem, k)
    check_contract(prepared, problem.d, problem.dtype, problem.regulariser)
    limit = float(largest_step(problem.regulariser))
    if limit < np.inf and (used := largest_prox_step(prepared)) >= limit:
        raise InputError(
            f"{type(algorithm).__name__} takes the prox of {type(problem.regulariser).__name__} with steps up to "
            f"{used:.3g}; a weakly convex regulariser needs steps below {limit:.3g}. Reduce eta (or tau, eta_g), or "
            "enlarge its gamma."
        )
    return Run(
        problem=problem,
        algorithm=prepared,
        rounds=rounds,
        batch_size=batch_size,
        participants=k,
        record_every=record_every,
        seed=seed,
        x0=problem.start if x0 is None else problem.point(x0, "x0"),
        reference=None if reference is None else problem.point(reference, "reference"),
        resume=resume,
    )


def _check_resume(resume: Trace, problem: Problem, algorithm: Algorithm, x0: Any) -> None:
    if not isinstance(resume, Trace):
        raise InputError(f"resume must be a Trace (Trace.load reads a saved one); got {type(resume).__name__}.")
    if resume.state is None:
        raise InputError("resume: this trace has no state to go on from.")
    if x0 is not None:
        raise InputError("give x0 (a new start) or resume (going on), not both.")
    before, now = resume.provenance.get("algorithm", {}).get("name"), type(algorithm).__name__
    if before != now:
        raise InputError(f"resume: the trace is of {before}, the algorithm is {now}; they must be the same.")
    if resume.provenance["dtype"] != problem.dtype.name:
        was = resume.provenance["dtype"]
        raise InputError(
            f"resume: the trace is {was}, the problem is {problem.dtype.name}; use problem.astype({was!r})."
        )
    if resume.x.shape != (problem.d,) or resume.provenance["problem"]["clients"] != problem.n:
        raise InputError(
            f"resume: the trace belongs to a problem of another shape than this one ({problem.n} x {problem.d})."
        )


def first_state(run: Run) -> tuple[Any, Any]:
    """Server state, and client states stacked along a first axis in the order of the sites: fresh, or as saved."""
    n = run.problem.n
    server, client = run.algorithm.init(jnp.asarray(run.x0))
    clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)), client)
    if run.resume is None or run.resume.state is None:
        return server, clients
    saved = run.resume.state
    return (
        jax.tree.unflatten(jax.tree.structure(server), [jnp.asarray(leaf) for leaf in saved.server]),
        jax.tree.unflatten(jax.tree.structure(clients), [jnp.asarray(leaf) for leaf in saved.clients]),
    )


class Recorder:
    """Collects what an engine saw and makes a trace of it."""

    def __init__(self, run: Run, engine: str):
        self.run, self.engine = run, engine
        self.cost = cost_of_a_round(run.algorithm, run.problem.d, run.problem.dtype, run.participants == run.problem.n)
        self.blocks: list[dict[str, np.ndarray]] = []
        self.x = run.x0
        self.size = np.linalg.norm(run.x0) + (0.0 if run.reference is None else np.linalg.norm(run.reference)) + 1.0
        self.seconds = 0.0
        self.blown: int | None = None  # the round in which the model blew up
        self.arrived = False  # did it stop because it was accurate enough?
        self.more: dict[str, Any] = {}  # further provenance
        if run.resume is not None:
            self.seconds = float(run.resume["seconds"][-1])
            self.blocks.append(run.resume.columns)
            self.x = run.resume.x

    @property
    def last_round(self) -> int:
        return int(self.blocks[-1]["round"][-1]) if self.blocks else -1

    def add(self, rounds: np.ndarray, models: np.ndarray, seen: dict[str, np.ndarray], seconds: float) -> None:
        """Record `models` after `rounds`, worked out in `seconds`; stops recording at the first that blew up."""
        if self.blown or not len(rounds):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            good = np.linalg.norm(models.astype(float), axis=1) < BLOW_UP * self.size  # False for NaN
        keep = len(rounds) if good.all() else int(good.argmin())
        if keep < len(rounds):
            self.blown = int(rounds[keep])
        before, span = max(self.last_round, 0), max(int(rounds[-1]) - max(self.last_round, 0), 1)
        if keep:
            block: dict[str, np.ndarray] = {"round": rounds[:keep]}
            known = {name: values[:keep] for name, values in seen.items()}
            block |= at_models(self.run.problem, models[:keep], self.run.reference, known)
            share = self.run.participants / self.run.problem.n
            for name, value in asdict(self.cost).items():
                block[name] = rounds[:keep] * value * (1.0 if name == "server_proxes" else share)
            block["seconds"] = self.seconds + seconds * (rounds[:keep] - before) / span
            self.blocks.append(block)
            self.x = models[keep - 1]
        self.seconds += seconds

    def trace(self, server: Any, clients: Any, where: str = "") -> Trace:
        """The trace of everything recorded; one that blew up says so and has no state to go on from."""
        present = {c: None for block in self.blocks for c in block}
        names = [c for c in COLUMNS if c in present] + [c for c in present if c not in COLUMNS]
        # a column that only one part of a resumed run measured is NaN in the other
        columns = {
            c: np.concatenate([block.get(c, np.full(len(block["round"]), np.nan)) for block in self.blocks])
            for c in names
        }
        provenance = self.provenance() | self.more
        if self.blown:
            provenance["diverged"] = self._what_happened(where)
            return Trace(columns, np.array(self.x), provenance)
        leaves = [[np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (server, clients)]
        return Trace(columns, np.array(self.x), provenance, State(self.last_round, *leaves))

    def diverged(self, round_: int, where: str = "") -> Divergence:
        """The error for a run that blew up in `round_`."""
        self.blown = round_
        trace = self.trace(None, None, where)
        return Divergence(trace.provenance["diverged"], trace)

    def _what_happened(self, where: str) -> str:
        return (
            f"{type(self.run.algorithm).__name__} diverged in round {self.blown}{where}: the model is not finite or "
            f"grew {BLOW_UP:.0e}-fold. {likely_cause(self.run)} Rounds 0 to {self.last_round} are kept in the trace."
        )

    def provenance(self) -> dict[str, Any]:
        run = self.run
        return {
            "engine": self.engine,
            "algorithm": describe(run.algorithm),
            "problem": run.problem.describe(),
            "rounds": self.last_round,
            "batch_size": run.batch_size,
            "participants": run.participants,
            "record_every": run.record_every,
            "seed": run.seed,
            "reference": None
            if run.reference is None
            else {"norm": float(np.linalg.norm(run.reference)), "nonzeros": int(np.count_nonzero(run.reference))},
            "dtype": run.problem.dtype.name,
            "device": str(jax.devices()[0].device_kind),
            "versions": dict(_versions()),
        }


@functools.cache  # a look into the files of four packages
def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("compfed", "jax", "jaxlib", "numpy")}
    return found | {"python": platform.python_version()}


def likely_cause(run: Run) -> str:
    """Compare the step with what the smoothness of the losses allows."""
    eta = getattr(run.algorithm, "eta", None)
    with precision(run.problem.dtype):
        largest = float(run.problem.client_lipschitz.max())
    if eta is None:
        return "Likely cause: step sizes too large for this problem."
    safe = 1.0 / largest
    if eta > safe:
        return f"Likely cause: eta={eta:g} is {eta / safe:.3g} times 1/L_max={safe:.3g}; try eta <= {safe:.3g}."
    return (
        f"Likely cause: eta={eta:g} (1/L_max={safe:.3g}) together with eta_g and tau is too long a step; reduce them."
    )

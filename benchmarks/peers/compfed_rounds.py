"""Algorithm 1 in compfed: `simulate` on all cores, in the precision named first."""

from __future__ import annotations

import sys
import time

import numpy as np
from clients import ETA, LAM, RIDGE, TAU, Clock, rounds, rows

import compfed as cf

cores, dtype = cf.use_all_cores(awake=True), sys.argv[1]
A, y = rows()
problem = cf.Problem(
    cf.losses.Logistic(ridge=RIDGE), cf.regularisers.L1(LAM), cf.data.from_arrays(list(A), list(y)), dtype=dtype
)
algorithm = cf.algorithms.DecoupledProx(eta=ETA, tau=TAU)
clock, count = Clock(), rounds()
for _ in range(6):  # the first compiles; the seconds are those of the rounds alone
    took = cf.simulate(problem, algorithm, 4 * count, record_every=4 * count)["seconds"][-1] / (4 * count)
    clock.marks.append(clock.marks[-1] + took if clock.marks else time.perf_counter())
# the state before the last prox is what the others end with
sent = np.asarray(cf.simulate(problem, algorithm, count).state.server[0])  # pyright: ignore[reportOptionalMemberAccess]
clock.report(f"compfed, {dtype}", cf.__version__, sent, f"{cores} cores")

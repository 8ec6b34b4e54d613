"""Algorithm 1 as a loop over clients in NumPy."""

from __future__ import annotations

import os

import numpy as np
from clients import Clock, local_steps, rounds, rows

A, y = rows()
clock, x, memory = Clock(), np.zeros(A.shape[2]), [()] * len(A)
for _ in range(rounds()):
    clock.mark()
    sent, memory = zip(*(local_steps(x, *client) for client in zip(memory, A, y, strict=True)), strict=True)
    x = np.mean(sent, axis=0)
threads = os.environ.get("OPENBLAS_NUM_THREADS", "all")
clock.report(f"NumPy loop, BLAS threads: {threads}", np.__version__, x)

"""What is measured at a recorded round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compfed.problem.measures import objectives_and_mappings
from compfed.problem.problem import Problem
from compfed.tools.precision import precision

COLUMNS = {
    "round": "communication rounds done; row 0 is the start",
    "optimality": "||x - x*|| / ||x*||, with x the algorithm's output (only when a reference is given)",
    "objective": "F(x) = sum_i p_i f_i(x) + g(x)",
    "gradient_mapping": "||(x - prox(x - grad f(x)/L)) L||, zero exactly at the minimiser",
    "nonzeros": "coefficients that are not exactly zero",
    "drift": "weighted mean distance of the participants' local models from their mean, at the end of the round",
    "correction": "||sum_i p_i c_i||, for algorithms with a drift correction c_i",
    "vectors_up": "d-vectors sent by a client, cumulative, averaged over clients; scalars are not counted",
    "vectors_down": "d-vectors sent to a client, likewise",
    "bytes_up": "bytes sent by a client, cumulative, averaged over clients; everything in the message counts",
    "bytes_down": "bytes sent to a client, likewise",
    "gradients": "gradient evaluations of a client (full or mini-batch), cumulative, averaged over clients",
    "client_proxes": "prox evaluations of a client, likewise; that of its local model at the end of a round counts",
    "server_proxes": "prox evaluations of the server, cumulative",
    "seconds": "wall-clock time of the rounds, without compilation and without measuring",
}

BLOCK = 64  # models measured together


def at_models(
    problem: Problem, X: np.ndarray, reference: np.ndarray | None, known: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The columns of the models in the rows of X: what the engine knows of them, and what is left to measure."""
    out: dict[str, np.ndarray] = {"nonzeros": np.count_nonzero(X, axis=1), **known}
    if reference is not None:
        scale = np.linalg.norm(reference)
        out["optimality"] = np.linalg.norm(X - reference, axis=1) / (scale if scale > 0 else 1.0)
    return out if "gradient_mapping" in known else out | _measured(problem, X)


def _measured(problem: Problem, X: np.ndarray) -> dict[str, np.ndarray]:
    """Objective and gradient mapping: two passes over the data for a whole block of rows."""
    step = 1.0 / problem.lipschitz
    parts = []
    with precision(problem.dtype):
        for start in range(0, len(X), BLOCK):
            rows = X[start : start + BLOCK]
            # two shapes only, one model or a whole block, so that nothing is compiled twice
            padded = rows if len(rows) == 1 else np.resize(rows, (BLOCK, X.shape[1]))
            values, mappings = objectives_and_mappings(problem.loss, problem.regulariser, problem.store, padded, step)
            parts.append((np.asarray(values)[: len(rows)], np.asarray(mappings, float)[: len(rows)]))
    with np.errstate(over="ignore"):  # a diverging run is reported by its engine, not by a warning here
        norms = np.linalg.norm(np.concatenate([m for _, m in parts]), axis=1)
    return {"objective": np.concatenate([values for values, _ in parts]), "gradient_mapping": norms}

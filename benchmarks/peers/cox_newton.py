"""One Cox fit by one engine, in a process of its own: python cox_newton.py ENGINE ROWS.npz.

Before the clock runs, the engine has fitted 400 of the rows, so that it is imported and compiled. Prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import numpy as np


def of_compfed(X, times, events):
    import compfed as cf

    return cf.FederatedCox(alpha=0, ties="efron").fit(X, np.column_stack([times, events])).coef_


def of_scikit_survival(X, times, events):
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    y = np.array(list(zip(events, times, strict=True)), [("event", bool), ("time", float)])
    return CoxPHSurvivalAnalysis(ties="efron").fit(X, y).coef_


ENGINES = {"compfed": of_compfed, "scikit-survival": of_scikit_survival}


def main():
    engine, data = sys.argv[1], np.load(sys.argv[2])
    X, times, events = data["X"], data["time"], data["event"]
    fit = ENGINES[engine]
    fit(X[:400, :5], times[:400], events[:400])
    began = time.perf_counter()
    coef = fit(X, times, events)
    seconds = time.perf_counter() - began
    try:
        which = version(engine)
    except PackageNotFoundError:
        which = "source"
    print(json.dumps({"engine": engine, "seconds": seconds, "version": which, "coef": np.ravel(coef).tolist()}))


if __name__ == "__main__":
    main()

"""Reference values of lifelines and scikit-survival for the tables of tests/survival; run once, in an environment of their own:

python -m venv peers && peers/bin/pip install lifelines scikit-survival
peers/bin/python benchmarks/peers/survival.py > tests/survival/references_python.json
"""

import json
import warnings
from pathlib import Path

import lifelines
import numpy as np
import pandas as pd
import sksurv
from lifelines import CoxPHFitter, KaplanMeierFitter
from lifelines.statistics import logrank_test
from sksurv.linear_model import CoxnetSurvivalAnalysis, CoxPHSurvivalAnalysis
from sksurv.metrics import concordance_index_censored

warnings.simplefilter("ignore")
FEATURES = ["x1", "x2", "x3", "x4"]
GRID = 0.15 * 0.6 ** np.arange(8)
found: dict[str, object] = {"versions": {"lifelines": lifelines.__version__, "scikit-survival": sksurv.__version__}}

for path in sorted(Path("tests/survival/tables").glob("*.csv")):
    d = pd.read_csv(path)
    used = d[[*FEATURES, "site", "time", "event", "weight", "entry"]]
    entered = bool((d.entry > 0).any())
    more = {"entry_col": "entry"} if entered else {}
    used = used if entered else used.drop(columns="entry")
    fit = CoxPHFitter().fit(
        used,
        "time",
        "event",
        strata=["site"],
        weights_col="weight",
        fit_options={"precision": 1e-12, "max_steps": 500},
        **more,
    )
    found[f"{path.stem}/lifelines/coef"] = fit.params_[FEATURES].tolist()
    found[f"{path.stem}/lifelines/loglik"] = fit.log_likelihood_
    if not entered and (d.weight == 1).all():
        y = np.array(list(zip(d.event == 1, d.time, strict=True)), [("event", bool), ("time", float)])
        for ties in ("efron", "breslow"):
            one = CoxPHSurvivalAnalysis(ties=ties, tol=1e-14).fit(d[FEATURES], y)
            found[f"{path.stem}/sksurv/{ties}"] = one.coef_.tolist()
        X = d[FEATURES] - d[FEATURES].mean()
        net = CoxnetSurvivalAnalysis(alphas=GRID, l1_ratio=1.0, tol=1e-14, max_iter=10**6).fit(X, y)
        found[f"{path.stem}/sksurv/coxnet"] = net.coef_.T.tolist()
        risk = d[FEATURES].to_numpy() @ one.coef_
        found[f"{path.stem}/sksurv/concordance"] = list(
            map(float, concordance_index_censored(y["event"], y["time"], risk))
        )
        a, b = d[d.x4 == 0], d[d.x4 == 1]
        found[f"{path.stem}/lifelines/logrank"] = logrank_test(a.time, b.time, a.event, b.event).test_statistic
        km = [KaplanMeierFitter().fit(part.time, part.event).predict([5, 10, 20, 40]).tolist() for part in (a, b)]
        found[f"{path.stem}/lifelines/km"] = km
print(json.dumps(found, indent=1))

"""Arguments that an estimator does not take, as people who know scikit-learn give them: each is told what to give instead."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from compfed.errors import UnknownArgument

ALWAYS = "there is nothing to set"
# name: what to give instead; {alpha} is "alphas" for an estimator that chooses among several
INSTEAD = {
    "C": "{alpha} = 1 / (C * n) with n rows in all: alpha is the weight of the penalty beside the mean loss",
    "Cs": "{alpha} = 1 / (C * n) with n rows in all: alpha is the weight of the penalty beside the mean loss",
    "penalty": "l1_ratio=1 for 'l1' and l1_ratio=0 for 'l2', where the model has it, and {alpha}=0 for no penalty",
    "alpha": "alphas, a list to choose from; with a given alpha, use the estimator without CV in its name",
    "alphas": "alpha, a number; to choose among several, use the estimator with CV at the end of its name",
    "n_alphas": "alpha, a number; to choose among several, use the estimator with CV at the end of its name",
    "cv": "nothing: alpha is given. To choose it, use the estimator with CV at the end of its name",
    "l1_ratio": "FederatedElasticNet (or FederatedLogisticRegression, FederatedHuber, FederatedPoissonRegressor), which has it",
    "l1_ratios": "one l1_ratio; scikit-learn's GridSearchCV compares several",
    "max_iter": "max_rounds, the most messages to each site",
    "n_iter": "max_rounds, the most messages to each site",
    "solver": "algorithm, 'auto' or a name from `compfed list algorithms`",
    "method": "algorithm, 'auto' or a name from `compfed list algorithms`",
    "n_jobs": f"nothing: all sites work at the same time, and {ALWAYS}",
    "epsilon": "delta, in the units of y",
    "normalize": "standardize=True",
    "standardise": "standardize",
    "normalise": "standardize=True",
    "random_state": f"seed, where folds are drawn; a fit with a given alpha has nothing random and {ALWAYS}",
    "warm_start": f"nothing: a fit takes about a dozen messages from the start, and {ALWAYS}",
    "precompute": f"nothing: {ALWAYS}",
    "copy_X": f"nothing: X is never changed, and {ALWAYS}",
    "selection": f"nothing: {ALWAYS}",
    "dual": f"nothing: {ALWAYS}",
    "intercept_scaling": "fit_intercept alone: the intercept is never penalised",
    "multi_class": "nothing: more than two classes are fitted together (multinomial)",
    "class_weight": "fit(..., sample_weight=...), the weight of every row",
    "sample_weight": "fit(..., sample_weight=...), the weight of every row",
    "sites": "fit(..., sites=...), the site of every row",
    "intercept": "fit_intercept",
}  # fmt: skip
INSTEAD |= dict.fromkeys(
    ("lam", "lambda", "lambda_", "lmbda", "reg", "reg_param", "regularization", "regularisation", "strength"),
    "{alpha}, the weight of the penalty beside the mean loss",
)


def check_known(estimator: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first name that is not known."""
    for name in given:
        if name in known:
            continue
        alpha = "alphas" if "alphas" in known else "alpha"
        near = difflib.get_close_matches(name, known, n=1)
        if name in INSTEAD:
            hint = f"Give {INSTEAD[name].format(alpha=alpha)}."
        elif near:
            hint = f"Did you mean {near[0]}?"
        else:
            hint = f"It takes {', '.join(sorted(known))}."
        raise UnknownArgument(f"{estimator} has no parameter {name!r}. {hint}")


def check_nothing_third(estimator: str, given: tuple[Any, ...]) -> None:
    """Refuse fit(X, y, z): to scikit-learn z is the rows' weights, and here it might be their sites."""
    if given:
        raise UnknownArgument(
            f"{estimator}.fit takes X and y by position, and {len(given)} more came: say which they are. "
            "sites=... is the site of every row, sample_weight=... how much every row counts (what scikit-learn takes third)."
        )

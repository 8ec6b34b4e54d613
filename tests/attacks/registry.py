"""All attacks on the rows of one site, by name, and the table of what they recover.

    PYTHONPATH=src:tests python -m attacks.registry

prints the table of README.md: rows recovered without a policy and under the default one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from attacks import by_federation, by_models, by_sandwich, by_scores, by_subsets
from attacks.measure import recovered
from attacks.target import POLICY, Target, breast_cancer, make_site


class Attack(NamedTuple):
    """`run` takes a `Target` and returns candidates; `quick` is the same with less work."""

    family: str
    how: str
    run: Callable[[Target], np.ndarray]
    quick: Callable[[Target], np.ndarray]


def _attack(family: str, how: str, run: Callable[..., np.ndarray], **less: int) -> Attack:
    return Attack(family, how, run, partial(run, **less) if less else run)


ATTACKS: dict[str, Attack] = {
    "one-row folds": _attack("subsets", "Moments of Fold(k, folds=n)", by_subsets.one_row_folds),
    "front door": _attack("subsets", "FederatedLogisticRegressionCV(cv=n, standardize=True), fold moments", by_federation.front_door),
    "half-splits": _attack("subsets", "Moments of Fold(0, 2, seed) for n + 20 seeds, least squares", by_subsets.half_splits),
    "differing folds": _attack("subsets", "Moments of 2 to 39 folds, least squares", by_subsets.differing_folds),
    "HeldOut of one row": _attack("subsets", "squared loss of e_j + c and e_j - c", by_subsets.held_out_of_one_row),
    "Lipschitz of one row": _attack("subsets", "one column at a time, six of them", by_subsets.lipschitz_of_one_row),
    "gradient of one row": _attack("subsets", "squared loss at x = c on a one-row fold", by_subsets.gradients_of_one_row),
    "Hessian of one row": _attack("Hessians", "pieces of 5 coordinates on a one-row fold", by_subsets.hessians_of_one_row),
    "held out by subtraction": _attack(
        "Hessians", "the Hessian of all rows less that of the rows to train with, squared loss", by_subsets.held_out_by_subtraction
    ),
    "batches of one row": _attack("batches", "FedAvg, batch_size=1, tau=1", by_subsets.batches_of_one_row),
    "batches of half the rows": _attack("batches", "FedAvg, public seeds, least squares", by_subsets.half_batches),
    "half-space": _attack("models", "logistic gradients at 1e8 u, bisection of the intercept", by_models.half_space),
    "half-space by rounds": _attack("models", "the same from LocalUpdate (FedAvg, tau=1)", by_models.half_space_by_rounds),
    "tiny smoothing": _attack("models", "SmoothedQuantile(smoothing=1e-9) at w = u", by_models.tiny_quantile),
    "tiny delta": _attack("models", "Huber(delta=1e-6) at w = u", by_models.tiny_huber),
    "Hessian pieces": _attack(
        "Hessians", "SquaredHinge() on 5 coordinates at a time, neighbours subtracted", by_models.hessian_pieces
    ),
    "steps of scores": _attack(
        "models", "thresholds or intercepts of Score bisected, at w = u and u + 1e-6 e_j", by_models.score_steps
    ),
    "absolute errors": _attack(
        "models", "Score of linear models: sum of abs(u) + sum of u is that of the rows above a threshold", by_scores.absolute_errors
    ),
    "extreme scores": _attack("models", "the least and the largest score of a class along every column", by_scores.extreme_scores),
    "largest prediction": _attack(
        "models", "Score of NegativeBinomial: sum u^2 / sum u of steep models", by_scores.largest_prediction
    ),
    "conjugate": _attack(
        "models", "Evaluate.dual is infinite or not: vertices of the hull of the rows", by_models.conjugate_vertices,
        vertices=40,
    ),
    "poles of leave-one-out": _attack(
        "models", "LeaveOneOut with a Hessian that is small along u, until a row has a leverage of 1: vertices of the hull",
        by_models.leverage_vertices, vertices=5,
    ),
    "half-space by products": _attack(
        "models", "Inference at 1e8 u, bisection of the intercept: squared residuals are 0 or 1", by_sandwich.half_space_products
    ),
    "span of products": _attack(
        "models", "200 products of Inference with squared loss: matrices of rank one in their span", by_sandwich.span_of_products,
        matrices=60,
    ),
    "largest residuals": _attack(
        "models", "Inference with steep Poisson models: the leading eigenvector of the products", by_sandwich.largest_residuals
    ),
}  # fmt: skip
# by ordinary models that the server chooses: no rule about one model, and no budget, stops these
WITHIN_THE_RULES: dict[str, Attack] = {
    "eigenvectors": _attack(
        "models", "logistic gradients on folds with fewer rows than columns: joint eigenvectors of two Hessians",
        by_models.eigenvectors,
    ),
    "span of Hessians": _attack(
        "Hessians", "200 logistic Hessians over all rows: matrices of rank one in their span", by_models.span_of_hessians,
        hessians=60,
    ),
    "span by gradients": _attack(
        "models", "the same on folds, from differences of gradients; works on totals of sites", by_models.span_by_gradients,
    ),
    "kinks of Huber": _attack("models", "Huber() at w = u: second differences of gradients", by_models.huber_kinks),
    "kinks of the hinge": _attack("models", "SquaredHinge() at w = u: second differences", by_models.hinge_kinks),
    "kinks of the quantile": _attack("models", "SmoothedQuantile(smoothing=2.0) at w = u", by_models.quantile_kinks),
    "sums of sigmoids": _attack(
        "models", "logistic gradients at slopes 2 to 40, Gauss-Newton and least squares", by_models.deconvolved,
        directions=1, points=800,
    ),
}  # fmt: skip


def main() -> None:
    print("| attack | how | before, of 143 | of 40 | after, of 143 | of 40 | models | share | refused because |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, attack in (ATTACKS | WITHIN_THE_RULES).items():
        found, targets = [], []
        for policy in (None, POLICY):
            for n in (143, 40):
                X, y = breast_cancer(n)
                targets.append(Target(make_site(X, y, policy)))
                found.append(recovered(attack.run(targets[-1]), X))
        counts = " | ".join(map(str, found))
        print(
            f"| {name} | {attack.how} | {counts} | {targets[2].answered} | {targets[2].share:.0%} | {targets[2].main_reason()} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""The synthetic(alpha, beta) federation of FedProx, with binary labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from compfed._utils.validation import check_bool, check_choice, check_int, check_nonnegative, is_int
from compfed.data.sites import Sites, from_arrays
from compfed.errors import InputError

LabelRule = Literal["sign", "argmax", "parity"]
Normalise = Literal["rows", "largest", "none"]


def synthetic(
    alpha: float = 10.0,
    beta: float = 10.0,
    clients: int = 30,
    samples: int | Sequence[int] = 2000,
    features: int = 60,
    seed: int = 0,
    *,
    label_rule: LabelRule = "sign",
    normalise: Normalise = "rows",
    ab_as_variance: bool = False,
) -> Sites:
    """Draw a heterogeneous federation for binary classification.

    Site i draws, with alpha and beta as standard deviations::

        u_i ~ N(0, alpha),  B_i ~ N(0, beta)
        feature means v_ij ~ N(B_i, 1),  model w_ij, b_i ~ N(u_i, 1)
        rows x ~ N(v_i, diag(j^-1.2)),  labels sign(w_i^T x + b_i)

    Labels are computed from these rows; then every row is divided by its norm. Without that the step sizes of the paper
    are a thousand times too large.

    Parameters
    ----------
    alpha : float, default=10.0
        Spread of the models between sites.
    beta : float, default=10.0
        Spread of the features between sites.
    clients : int, default=30
        The number of sites.
    samples : int or sequence of int, default=2000
        Rows per site, one number or one per site.
    features : int, default=60
    seed : int, default=0
    label_rule : {"sign", "argmax", "parity"}, default="sign"
        "sign" is above; "argmax" is the larger of two linear scores and "parity" that of the index of the largest of
        ten. With these two, alpha shifts all scores equally and has no effect.
    normalise : {"rows", "largest", "none"}, default="rows"
        Divide each row by its norm, all rows by the largest norm in the federation, or none.
    ab_as_variance : bool, default=False
        Read alpha and beta as variances.

    Returns
    -------
    Sites
        With labels -1 and 1.

    References
    ----------
    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (the generator); Zhang, Hu, Johansson,
    "Composite federated learning with heterogeneous data", ICASSP 2024 (with labels -1 and 1).

    Examples
    --------
    >>> sites = synthetic(clients=3, samples=[10, 20, 30], features=5)
    >>> sites.sizes.tolist(), sites.width
    ([10, 20, 30], 5)
    """
    sizes = _sizes(clients, samples)
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_nonnegative(value, name, " It is a spread.")
    check_int(seed, "seed", 0)
    check_int(features, "features", 1)
    check_choice(label_rule, "label_rule", get_args(LabelRule))
    check_choice(normalise, "normalise", get_args(Normalise))
    check_bool(ab_as_variance, "ab_as_variance")
    a, b = (np.sqrt(alpha), np.sqrt(beta)) if ab_as_variance else (alpha, beta)
    rng = np.random.default_rng(seed)
    u = a * rng.standard_normal(clients)
    B = b * rng.standard_normal(clients)
    v = B[:, None] + rng.standard_normal((clients, features))
    spread = np.arange(1, features + 1) ** -0.6  # square root of the variances j^-1.2

    X, Y = [], []
    for i, m in enumerate(sizes):
        classes = {"sign": 1, "argmax": 2, "parity": 10}[label_rule]
        W = u[i] + rng.standard_normal((features, classes))
        w0 = u[i] + rng.standard_normal(classes)
        x = v[i] + spread * rng.standard_normal((m, features))
        score = x @ W + w0
        positive = score[:, 0] >= 0 if label_rule == "sign" else score.argmax(axis=1) % 2 == 0
        X.append(x)
        Y.append(np.where(positive, 1.0, -1.0))

    norms = [np.linalg.norm(x, axis=1, keepdims=True) for x in X]
    if normalise == "rows":
        X = [x / np.where(norm > 0, norm, 1.0) for x, norm in zip(X, norms, strict=True)]
    elif normalise == "largest":
        largest = max(norm.max() for norm in norms)
        X = [x / largest for x in X]

    source = {
        "name": "synthetic", "alpha": alpha, "beta": beta, "clients": clients, "features": features, "seed": seed,
        "samples": sizes[0] if len(set(sizes)) == 1 else sizes,
        "label_rule": label_rule, "normalise": normalise, "ab_as_variance": ab_as_variance,
    }  # fmt: skip
    return from_arrays(X, Y, source=source)


def _sizes(clients: int, samples: int | Sequence[int]) -> list[int]:
    check_int(clients, "clients", 1)
    sizes = list(samples) if isinstance(samples, (Sequence, np.ndarray)) else [samples] * clients
    if len(sizes) != clients:
        raise InputError(f"samples has {len(sizes)} entries for {clients} clients; give one number, or one per client.")
    if not all(is_int(m) and m >= 1 for m in sizes):
        raise InputError(f"samples={samples!r}: every site needs a whole number of rows >= 1.")
    return [int(m) for m in sizes]

"""Data to try things on: a synthetic federation, and real tables with the site of every row.

Three tables come with scikit-learn, two are read from a folder.

Both `from_table(t.X, t.y, t.sites)` and `fit(t.X, t.y, sites=t.sites)` take a `Table`. Features are as published, on their
own scales; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from compfed._utils.text import shapes_shown
from compfed._utils.validation import check_bool, check_choice, check_int, check_nonnegative, is_int
from compfed.data import partition
from compfed.data.sites import Sites, from_arrays, from_table
from compfed.errors import InputError


@dataclass(frozen=True)
class BundledTable:
    """A table with the site of each row.

    Attributes
    ----------
    X : ndarray of shape (n_rows, d)
    y : ndarray of shape (n_rows,)
    sites : ndarray of shape (n_rows,)
    feature_names : tuple of str
    description : str
    """

    X: np.ndarray
    y: np.ndarray
    sites: np.ndarray
    feature_names: tuple[str, ...]
    description: str
    __repr__ = shapes_shown

    def federation(self) -> Sites:
        """Build the federation of its sites."""
        source = {"name": "bundled", "table": self.description.partition(":")[0]}
        return replace(from_table(self.X, self.y, self.sites), columns=self.feature_names, source=source)


def breast_cancer(sites: int = 4) -> BundledTable:
    """Load the Wisconsin diagnostic breast cancer table, 569 x 30, label 1 = benign.

    The sites are simulated: quantile bins of the mean radius, as if clinics saw different stages. Site 0 has the smallest
    tumours, nearly all benign.

    Parameters
    ----------
    sites : int, default=4
        The number of sites.

    Returns
    -------
    BundledTable

    Examples
    --------
    >>> table = breast_cancer()
    >>> table.X.shape, np.bincount(table.sites).tolist()
    ((569, 30), [143, 142, 142, 142])
    """
    from sklearn.datasets import load_breast_cancer

    loaded: Any = load_breast_cancer()
    names = tuple(str(name) for name in loaded.feature_names)
    where = partition.by_column(loaded.data[:, names.index("mean radius")], bins=sites)
    text = f"breast_cancer: 569 tumours, label 1 = benign; {sites} sites, quantile bins of the mean radius (simulated)"
    return BundledTable(loaded.data, loaded.target, where, names, text)


def diabetes(sites: Literal["age", "sex"] = "age") -> BundledTable:
    """Load the diabetes table, 442 x 10: disease progression after a year, a number to predict.

    The sites come from a recorded column. Features are centred and scaled as in scikit-learn. The site column stays among
    them, so "sex" is constant within a site of that split.

    Parameters
    ----------
    sites : {"age", "sex"}, default="age"
        Four age bands, or the two sexes.

    Returns
    -------
    BundledTable

    Examples
    --------
    >>> table = diabetes()
    >>> dict(zip(*map(np.ndarray.tolist, np.unique(table.sites, return_counts=True)), strict=True))
    {'19-39': 117, '40-49': 97, '50-59': 125, '60-79': 103}
    """
    from sklearn.datasets import load_diabetes

    check_choice(sites, "sites", ("age", "sex"))
    loaded: Any = load_diabetes()
    raw: Any = load_diabetes(scaled=False)
    column = raw.data[:, raw.feature_names.index(sites)]
    if sites == "age":
        where = np.array(["19-39", "40-49", "50-59", "60-79"])[np.digitize(column, [40, 50, 60])]
    else:
        where = np.array(["sex 1", "sex 2"])[column.astype(int) - 1]
    text = f"diabetes: 442 patients, progression after a year; sites by {sites} (recorded)"
    return BundledTable(loaded.data, loaded.target, where, tuple(loaded.feature_names), text)


def digits(sites: int = 10, alpha: float = 0.3, seed: int = 0) -> BundledTable:
    """Load the handwritten digits, 1797 x 64 pixels from 0 to 16, ten classes.

    The sites are simulated, with label skew: ``partition.dirichlet(y, sites, alpha, seed, min_rows=10)``.

    Parameters
    ----------
    sites : int, default=10
        The number of sites.
    alpha : float, default=0.3
        Of the Dirichlet distribution: a small alpha is a strong skew.
    seed : int, default=0

    Returns
    -------
    BundledTable

    Examples
    --------
    >>> table = digits(sites=5)
    >>> table.X.shape, len(np.unique(table.sites))
    ((1797, 64), 5)
    """
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    where = partition.dirichlet(loaded.target, sites, alpha, seed, min_rows=10)
    text = f"digits: 1797 images of 8 x 8 pixels; {sites} sites with Dirichlet({alpha}) label shares (simulated)"
    return BundledTable(loaded.data, loaded.target, where, tuple(loaded.feature_names), text)


HEART_SOURCE = "https://doi.org/10.24432/C52P4X"
# the first ten of 14 columns; then come slope, ca, thal and num
HEART_COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
# hospital: (file, complete rows it must give)
HEART_FILES = {
    "cleveland": ("processed.cleveland.data", 303),
    "hungary": ("processed.hungarian.data", 261),
    "switzerland": ("processed.switzerland.data", 46),
    "va": ("processed.va.data", 130),
}


def heart(folder: str | Path) -> BundledTable:
    """Read the UCI heart disease table, 740 x 13, label 1 = disease (num > 0), recorded by four hospitals.

    The columns slope, ca and thal are left out, because they are mostly missing, and then rows with a missing value. cp
    and restecg become one column per level but the first. In Switzerland chol is 0 throughout: it was not measured.

    Parameters
    ----------
    folder : path
        Holds processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and processed.va.data.

    Returns
    -------
    BundledTable
        The sites are the hospitals.

    References
    ----------
    Janosi, Steinbrunn, Pfisterer, Detrano, "Heart Disease", UCI, 1989, doi 10.24432/C52P4X. Rows and columns are those of
    Fed-Heart-Disease of FLamby (du Terrail et al., NeurIPS 2022).

    Examples
    --------
    >>> table = heart("data/heart")  # doctest: +SKIP
    >>> table.X.shape  # doctest: +SKIP
    (740, 13)
    """
    tables, where = [], []
    for hospital, (name, complete) in HEART_FILES.items():
        path = _present(folder, name, f"the heart disease data of UCI, {HEART_SOURCE}")
        # a wrong number of columns is a ValueError, a hole ('?') a NaN
        try:
            rows = np.genfromtxt(path, delimiter=",")[:, [*range(10), 13]]
        except (ValueError, IndexError):
            raise InputError(f"{name} must have 14 columns with commas between and no header; get UCI's.") from None
        rows = rows[~np.isnan(rows).any(axis=1)]
        if len(rows) != complete:
            found = f"{name} has {len(rows)} complete rows where UCI's has {complete}"
            raise InputError(f"{found}: an altered copy, often with 0 for '?'. Get UCI's, {HEART_SOURCE}.")
        tables.append(rows)
        where += [hospital] * complete
    *measured, num = np.concatenate(tables).T
    levels = {"cp": (2, 3, 4), "restecg": (1, 2)}
    columns: dict[str, np.ndarray] = {}
    for name, column in zip(HEART_COLUMNS, measured, strict=True):
        one_hot = {f"{name}={k}": (column == k).astype(float) for k in levels.get(name, ())}
        columns |= one_hot or {name: column}
    text = "heart: 740 patients, label 1 = disease; sites are four hospitals (recorded)"
    X = np.column_stack(list(columns.values()))
    return BundledTable(X, (num > 0).astype(float), np.array(where), tuple(columns), text)


# one-hot groups of a9a in the order of its columns, with their sizes
A9A_GROUPS = {
    "age": 5, "workclass": 8, "fnlwgt": 5, "education": 16, "education-num": 5, "marital-status": 7, "occupation": 14,
    "relationship": 6, "race": 5, "sex": 2, "capital-gain": 2, "capital-loss": 2, "hours-per-week": 5,
    "native-country": 41,
}  # fmt: skip
A9A_SITES = {
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
        "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
        "Priv-house-serv", "Protective-serv", "Armed-Forces",
    ),
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
        "Never-worked",
    ),
}  # fmt: skip


def a9a(
    folder: str | Path,
    sites: Literal["occupation", "workclass"] = "occupation",
    drop_site_columns: bool = False,
    file: Literal["a9a", "a9a.t"] = "a9a",
) -> BundledTable:
    """Read UCI Adult in the binary encoding of LIBSVM, 32561 x 123, label +1 = income over 50,000 dollars.

    The sites are the 14 occupations (or 8 work classes) read from the columns that encode them, and "missing" where none
    is set. Labels and sizes are strongly skewed.

    Parameters
    ----------
    folder : path
        Holds the file.
    sites : {"occupation", "workclass"}, default="occupation"
    drop_site_columns : bool, default=False
        Leave out the columns that encode the site, each of which is constant within a site.
    file : {"a9a", "a9a.t"}, default="a9a"
        "a9a.t" has the 16281 rows of the test set.

    Returns
    -------
    BundledTable

    References
    ----------
    Kohavi, Becker, "Adult", UCI, 1996, doi 10.24432/C5XW20; encoding by Platt, on LIBSVM's data page.

    Examples
    --------
    >>> table = a9a("data")  # doctest: +SKIP
    >>> table.X.shape  # doctest: +SKIP
    (32561, 123)
    """
    from sklearn.datasets import load_svmlight_file

    check_choice(sites, "sites", tuple(A9A_SITES))
    check_choice(file, "file", ("a9a", "a9a.t"))
    check_bool(drop_site_columns, "drop_site_columns")
    path = _present(folder, file, "a9a, https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#a9a")
    try:
        loaded: Any = load_svmlight_file(str(path), n_features=sum(A9A_GROUPS.values()))
    except ValueError as problem:
        raise InputError(f"{file} is not LIBSVM's file ({problem}); get it again.") from None
    X, y = loaded[0].toarray(), loaded[1]
    names = [f"{group}_{k}" for group, size in A9A_GROUPS.items() for k in range(1, size + 1)]
    site_columns = np.array([name.rpartition("_")[0] == sites for name in names])
    encoded = X[:, site_columns]
    where = np.where(encoded.any(axis=1), np.array(A9A_SITES[sites])[encoded.argmax(axis=1)], "missing")
    if drop_site_columns:
        X, names = X[:, ~site_columns], [name for name, gone in zip(names, site_columns, strict=True) if not gone]
    return BundledTable(X, y, where, tuple(names), f"{file}: income of {len(y)} people; sites by {sites} (recorded)")


def _present(folder: str | Path, name: str, what: str) -> Path:
    path = Path(folder, name)
    if not path.is_file():
        raise InputError(f"there is no file {path}; it is part of {what}. Download it and give its folder.")
    return path


# --- the synthetic federation ---

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

"""`compare_local_federated`: the models of single sites, their average, the federated model and the pooled one.

Every site holds out some of its rows (`Holdout`). All models are fitted to the rows that are kept, the local ones in the
messages of the federated one, and all are scored on the rows that are held out. No row leaves its site for that. Only the
pooled model, and scores beyond the mean loss, need the rows in this process.
"""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse, vstack
from sklearn.base import clone
from sklearn.metrics import d2_tweedie_score, r2_score

from compfed._utils.files import atomic_path, check_writable, write_text
from compfed._utils.text import join_names, number_table, shorten
from compfed._utils.validation import check_int
from compfed.data import Sites
from compfed.data.splits import names_rows
from compfed.errors import InputError, MissingExtra
from compfed.estimators.base import FederatedModel
from compfed.estimators.path_and_cv import CrossValidated
from compfed.estimators.programs.fit import FitOptions, Fitted, fit
from compfed.federation.accounting import Communication
from compfed.federation.queries import HeldOut
from compfed.federation.server.moments import pooled_mean, spread
from compfed.federation.server.program import Federation, Program, Request, SingleSite, for_site, gather, run_program
from compfed.federation.server.sums import HeldOutSum
from compfed.federation.site.in_process import InProcess
from compfed.losses import Poisson
from compfed.report.coefficient_figures import comparison_figure
from compfed.report.figures import write
from compfed.simulation.federation import Simulated
from compfed.splits import Holdout
from compfed.studies.pooled_fit import fit_pooled

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

AVERAGE, FEDERATED, POOLED = "average of local", "federated", "pooled"
SAME = 1e-6  # coefficients of the federated and the pooled model that differ by less agree
MOST_SITES = 8  # sites with a column of their own in the text; the scores of more are summarised
MOST_FEATURES = 40  # features that the text always lists; of more, those that the last two models use
NAME = 22  # characters of a name in the text


@dataclass(frozen=True)
class SiteComparison:
    """Models of single sites, their average, the federated model and, where it was asked for, the pooled one.

    One column per model. The last model is the reference of `extra`, `missing` and `distance`: the pooled model, or the
    federated one. NaN stands for a number that is not defined, such as the coefficients of a model that cannot be fitted.
    `str` gives the tables, `figure()` the figure, `save(folder)` both.

    Attributes
    ----------
    sites : tuple of str
    models : tuple of str
        "local: SITE" in the order of the sites, "average of local", "federated" and, with `pooled=True`, "pooled".
    features : tuple of str
        Rows of `coefficients`; "feature [class]" where there are several outputs.
    outputs : tuple of str
        Rows of `intercepts`, as they end the names in `features`.
    coefficients : array of shape (features, models)
        On the original scale.
    intercepts : array of shape (outputs, models)
    scale : array of shape (features,)
        Standard deviation over the rows that the models were fitted to.
    used : array of shape (models,)
        Number of features with a coefficient that is not zero.
    extra, missing : array of shape (models,)
        Number of coefficients that are zero in the reference only, and in the model only, the other way round.
    distance : array of shape (models,)
        ||s (w - w_ref)|| / ||s w_ref||, s = `scale`.
    scores : dict of str to array of shape (models, sites + 1)
        By measure, on the held-out rows of each site and of all sites together: "log loss" of a classifier, otherwise
        "mean loss"; with `pooled=True` first "accuracy", "R^2" or, for counts, "D^2".
    own : dict of str to array of shape (sites + 1,)
        By measure, where each row is predicted by the model of its own site.
    rows : array of shape (sites, 2)
        Weight of the rows fitted to and of those held out; their number unless rows are weighted.
    status : tuple of str
        For each model "", or why it is missing or incomplete.
    pooled_by : str
        The solver of the pooled model; "" without one.
    estimator : str
    notes : tuple of str
        Fits that did not converge or that have several minimisers, and whether federated and pooled model differ.
    communication : Communication
        Messages and bytes of all fits and of the scores.
    """

    sites: tuple[str, ...]
    models: tuple[str, ...]
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    coefficients: np.ndarray
    intercepts: np.ndarray
    scale: np.ndarray
    used: np.ndarray
    extra: np.ndarray
    missing: np.ndarray
    distance: np.ndarray
    scores: dict[str, np.ndarray]
    own: dict[str, np.ndarray]
    rows: np.ndarray
    status: tuple[str, ...]
    pooled_by: str
    estimator: str
    notes: tuple[str, ...]
    communication: Communication

    def __str__(self) -> str:
        return _text(self)

    def to_pandas(self) -> tuple[DataFrame, DataFrame]:
        """Return (summary, coefficients) as DataFrames: one row per model, and one row per feature."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "pandas", "SiteComparison.to_pandas()") from None
        columns: dict[str, Sequence[str] | np.ndarray] = {
            "status": self.status, "features": self.used, "extra": self.extra, "missing": self.missing,
            "distance": self.distance,
        }  # fmt: skip
        for measure, values in self.scores.items():
            columns |= {f"{measure}: {site}": values[:, i] for i, site in enumerate([*self.sites, "all"])}
        names, values = self._coefficient_rows()
        return (
            pandas.DataFrame(columns, index=pandas.Index(self.models, name="model")),
            pandas.DataFrame(values, index=pandas.Index(names, name="feature"), columns=list(self.models)),
        )

    def figure(self) -> Figure:
        """Draw coefficients per standard deviation, model by model, and held-out scores, site by site (matplotlib)."""
        return comparison_figure(
            sites=self.sites, models=self.models, status=self.status, features=self.features,
            coefficients=self.coefficients * self.scale[:, None], scores=self.scores, own=self.own,
        )  # fmt: skip

    def save(self, folder: str | Path) -> list[Path]:
        """Write table.txt, coefficients.csv, figure.png and figure.svg into a folder, which is made if it is missing."""
        target = Path(folder)
        check_writable(target, f"save({str(folder)!r})")
        target.mkdir(parents=True, exist_ok=True)
        table, coefficients = target / "table.txt", target / "coefficients.csv"
        write_text(table, f"{self}\n")
        names, values = self._coefficient_rows()
        with atomic_path(coefficients) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(["feature", *self.models])
            out.writerows([name, *row] for name, row in zip(names, values.tolist(), strict=True))
        return [table, coefficients, *write(self.figure(), target / "figure", ("png", "svg"))]

    def _coefficient_rows(self) -> tuple[list[str], np.ndarray]:
        """Coefficients, and the intercepts below them."""
        names = [*self.features, *(f"(intercept){output}" for output in self.outputs)]
        return names, np.vstack([self.coefficients, self.intercepts])


def compare_local_federated(
    estimator: FederatedModel,
    data: Federation | Sites | npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    sites: npt.ArrayLike | str | None = None,
    *,
    pooled: bool = False,
    test_size: float = 0.3,
    seed: int = 0,
    feature_names: Sequence[str] | None = None,
) -> SiteComparison:
    """Compare the models of single sites, their average and the federated model on held-out rows.

    Every site holds out the share `test_size` of its rows, class by class for a classifier, and all models are fitted to
    the others. The average of the local coefficients, weighted by rows, is included because it is often used; it is not
    the pooled model.

    Parameters
    ----------
    estimator : estimator of compfed
        With a given alpha, such as ``FederatedLasso(alpha=0.1)``. An estimator that chooses its alpha by
        cross-validation needs rows in this process: it chooses one alpha per local model, and one over all sites, which
        the pooled model shares.
    data : Federation, Sites or array of shape (rows, features)
        A federation, across a network or in this process; sites from `compfed.data`; or one table of features.
    y : array of shape (rows,), optional
        The labels, where `data` is a table.
    sites : array of shape (rows,) or str, optional
        The site of every row of a table, or the name of a column of a DataFrame.
    pooled : bool
        Also fit the pooled rows, with an independent solver (scikit-learn, wherever it has the same objective), and score
        all models by accuracy, R^2 or D^2 too. The rows must be in this process.
    test_size : float
        The share of rows held out, between 0 and 1.
    seed : int
        Seed of the split.
    feature_names : sequence of str, optional
        Names for a table without column names.

    Returns
    -------
    SiteComparison

    Raises
    ------
    InputError
        If the estimator chooses its alpha, or `pooled` is true, and the rows are not in this process; if there are fewer
        than two sites.

    Examples
    --------
    >>> import compfed as cf
    >>> t = cf.data.bundled.diabetes()
    >>> lasso = cf.FederatedLasso(1.0, standardize=True)
    >>> found = cf.compare_local_federated(lasso, t.X, t.y, t.sites, pooled=True)
    >>> found.models[-3:], found.used[-3:].astype(int).tolist(), (found.distance[-3:] < 1e-6).tolist()
    (('average of local', 'federated', 'pooled'), [10, 9, 9], [False, True, True])

    Over a federation no row leaves its site, and the held-out rows are the same:

    >>> federation = cf.federation.InProcess(cf.data.from_table(t.X, t.y, t.sites))
    >>> same = cf.compare_local_federated(lasso, federation)
    >>> bool(np.allclose(same.scores["mean loss"], found.scores["mean loss"][:-1]))
    True
    """
    federation = _federation(estimator, data, y, sites)
    if not 0 < test_size < 1:
        raise InputError(f"test_size={test_size!r} must be between 0 and 1.")
    check_int(seed, "seed", 0)
    if len(federation.names) < 2:
        raise InputError("a comparison needs at least two sites; all rows are at one.")
    if pooled and not isinstance(federation, InProcess):
        raise InputError(
            "pooled=True needs the rows in this process. Leave it out to compare over a network: without it no row leaves "
            "its site."
        )
    by_class = estimator.fit_options().family.classifies
    kept, out = (Holdout(test_size, seed, by_class, held_out) for held_out in (False, True))
    alphas = _alphas(estimator, federation, kept)
    model = with_alpha(estimator, alphas[-1])
    (fitted, local), cost = run_program(federation, _fit_all(federation, model.fit_options(), alphas, kept))
    models, notes = _models(federation.names, fitted, local)
    pooled_by = ""
    if pooled and isinstance(federation, InProcess):
        coef, intercept, pooled_by = fit_pooled(model, federation, kept)
        models.append(_Model(POOLED, coef, intercept, models[-1].classes))
    (losses, rows), scoring_cost = run_program(federation, _held_out_losses(federation, fitted, models, out))
    scores = {"log loss" if by_class else "mean loss": (losses, _own_losses(losses, rows))}
    coefficients = _coefficients(models, fitted, feature_names)
    if pooled and isinstance(federation, InProcess):
        scores = _row_scores(federation, models, out, isinstance(fitted.prepared.spec.loss, Poisson)) | scores
        notes += _disagreement(federation, models, float(coefficients["distance"][-2]), kept)
    return SiteComparison(
        **coefficients,
        sites=federation.names,
        models=tuple(model.label for model in models),
        scores={measure: values for measure, (values, _) in scores.items()},
        own={measure: own for measure, (_, own) in scores.items()},
        rows=np.column_stack([fitted.prepared.summary.totals, rows]),
        status=tuple(model.status for model in models),
        pooled_by=pooled_by,
        estimator=" ".join(repr(estimator).split()),
        notes=tuple(notes),
        communication=cost.then(scoring_cost),
    )


def _federation(estimator: FederatedModel, data: object, y: object, sites: object) -> Federation:
    """The sites to compare, checked."""
    if not isinstance(estimator, FederatedModel):
        raise InputError(
            f"compare_local_federated needs an estimator of compfed, such as FederatedLasso(alpha=0.1); got "
            f"{type(estimator).__name__}."
        )
    if names_rows(getattr(estimator, "cv", 5)):
        raise InputError(
            f"{type(estimator).__name__}: its cv names the rows of one table, and a comparison fits to several parts of "
            "it. Give a number of folds, 'leave-one-site-out' or a splitter."
        )
    if isinstance(data, Sites) or hasattr(data, "send"):
        if y is not None or sites is not None:
            raise InputError(f"y and sites belong to a table; {type(data).__name__} has its own labels and sites.")
        return Simulated(data) if isinstance(data, Sites) else data  # pyright: ignore[reportReturnType]  # it has `send`
    if y is None or isinstance(y, str):
        raise InputError(f"y={y!r}: give the label of every row, such as X['label'], and X without that column.")
    if sites is None:
        raise InputError("sites is missing: give the site of every row, or the name of a column of a DataFrame.")
    return estimator.make_table(
        cast("Any", data), cast("Any", y), cast("Any", sites), None
    ).federation()  # which checks them


# --- the models ---


@dataclass(frozen=True)
class _Model:
    """Coefficients on the original scale; None for a model that cannot be fitted."""

    label: str
    coef: np.ndarray | None  # (outputs, features)
    intercept: np.ndarray | None  # (outputs,)
    classes: np.ndarray | None = None
    status: str = ""

    def has_classes_of(self, other: _Model) -> bool:
        """Is there a model, of the same classes?"""
        return self.coef is not None and np.array_equal(self.classes, other.classes)  # pyright: ignore[reportArgumentType]  # None equals None

    def predictor(self, A: np.ndarray) -> np.ndarray:
        """Linear predictions of shape (rows, outputs)."""
        assert self.coef is not None
        return np.asarray(A @ self.coef.T) + self.intercept


def with_alpha(estimator: FederatedModel, alpha: float | str) -> FederatedModel:
    """The estimator with this alpha given: of one that chooses its alpha, the class without cross-validation."""
    own = type(estimator)
    cls = cast("Callable[..., FederatedModel]", own.__bases__[1] if issubclass(own, CrossValidated) else own)
    parameters = {k: v for k, v in estimator.get_params(deep=False).items() if k in inspect.signature(cls).parameters}
    return cls(**parameters | {"alpha": alpha})


def _alphas(estimator: FederatedModel, federation: Federation, kept: Holdout) -> list[float | str]:
    """The alpha of each local model, or why there is none, and last the alpha over all sites."""
    if (alpha := getattr(estimator, "alpha", None)) is not None:
        return [float(alpha)] * (len(federation.names) + 1)
    if not isinstance(federation, InProcess):
        raise InputError(
            "over a network compare_local_federated needs an estimator with a given alpha, such as FederatedLasso(alpha=0.1); "
            f"got {type(estimator).__name__}. Choose alpha with its fit_federation first."
        )
    masks = [kept.mask(site) for site in federation.sites]
    X, y, q = (
        [getattr(site, name)[mask] for site, mask in zip(federation.sites, masks, strict=True)]
        for name in ("features", "labels", "row_weights")
    )

    def chosen(A: npt.ArrayLike, labels: np.ndarray, weight: np.ndarray, where: np.ndarray | None) -> float:
        model: Any = clone(estimator)
        return model.fit(A, labels, sites=where, sample_weight=weight).alpha_

    alphas: list[float | str] = []
    for own in zip(X, y, q, strict=True):
        try:
            alphas.append(chosen(*own, None))
        except InputError as problem:
            alphas.append(str(problem))
    table = cast("npt.ArrayLike", vstack(X)) if issparse(X[0]) else np.concatenate(X)
    where = np.repeat(federation.names, [len(labels) for labels in y])
    return [*alphas, chosen(table, np.concatenate(y), np.concatenate(q), where)]


Local = Fitted | str  # the fit of a site alone, or why there is none


def _fit_all(
    federation: Federation, options: FitOptions, alphas: Sequence[float | str], kept: Holdout
) -> Program[tuple[Fitted, list[Local]]]:
    """The federated fit and those of the sites alone, in the same messages."""
    n = len(federation.names)
    programs: list[Program[Local]] = [_fit(federation, options, alphas[-1], kept)]
    programs += [for_site(i, n, _fit(_alone(federation, i), options, alphas[i], kept)) for i in range(n)]
    fitted, *local = yield from gather(programs)
    if isinstance(fitted, str):
        raise InputError(fitted)
    return fitted, local


def _fit(federation: Federation, options: FitOptions, alpha: float | str, kept: Holdout) -> Program[Local]:
    """A fit to the rows that are kept; a reason where it cannot be made, as with rows of a single class."""
    if isinstance(alpha, str):
        return alpha
    try:
        return (yield from fit(federation, options, alpha, kept))
    except InputError as problem:
        return str(problem)


def _alone(federation: Federation, i: int) -> Federation:
    """Site i as a federation of its own, compiled where the whole federation is."""
    return federation.alone(i) if isinstance(federation, Simulated) else SingleSite(federation, i)


def _models(names: Sequence[str], fitted: Fitted, local: Sequence[Local]) -> tuple[list[_Model], list[str]]:
    """The local models, their average and the federated one, and notes about their fits."""
    fits = [*((f"local: {name}", fit) for name, fit in zip(names, local, strict=True)), (FEDERATED, fitted)]
    *each, federated = (_model(label, fit, fitted) for label, fit in fits)
    notes = [note for label, fit in fits for note in _notes(label, fit)]
    gathered = fitted.prepared.summary
    weights = np.ones(len(each)) if fitted.prepared.options.equal_sites else gathered.totals
    usable = [i for i, model in enumerate(each) if model.has_classes_of(federated)]
    average = _Model(AVERAGE, None, None, status="no local model")
    if usable:
        coefs, intercepts = zip(*((each[i].coef, each[i].intercept) for i in usable), strict=True)
        status = "" if len(usable) == len(each) else f"{len(usable)} of {len(each)} sites"
        coef, intercept = (np.average(values, axis=0, weights=weights[usable]) for values in (coefs, intercepts))
        average = _Model(AVERAGE, coef, intercept, gathered.labels.classes, status)
    return [*each, average, federated], notes


def _model(label: str, fit: Local, federated: Fitted) -> _Model:
    """The published coefficients of a fit."""
    if isinstance(fit, str):
        return _Model(label, None, None, status="cannot be fitted")
    classes, all_classes = (f.prepared.summary.labels.classes for f in (fit, federated))
    coef, intercept = fit.prepared.coef_and_intercept(fit.minimum.x)
    status = ""
    if classes is not None and all_classes is not None and len(classes) < len(all_classes):
        status = f"{len(classes)} of {len(all_classes)} classes"
    return _Model(label, np.atleast_2d(coef), np.atleast_1d(intercept), classes, status)


def _notes(label: str, fit: Local) -> Iterator[str]:
    """Why a fit is missing, or not the only minimiser."""
    if isinstance(fit, str):
        yield f"{label}: {fit}"
        return
    if not fit.minimum.converged:
        yield f"{label}: not converged; the gradient mapping is {fit.minimum.certificate.relative:.1e} of its scale"
    if fit.undecided:
        yield f"{label}: several minimisers; these coefficients can change together: {join_names(fit.undecided)}"


def _coefficients(models: Sequence[_Model], fitted: Fitted, names: Sequence[str] | None) -> dict[str, Any]:
    """The fields of `SiteComparison` about coefficients; the last model is the reference."""
    gathered, reference = fitted.prepared.summary, models[-1]
    assert reference.coef is not None
    outputs, width = reference.coef.shape
    columns = gathered.columns if names is None else names
    columns = [str(name) for name in (range(width) if columns is None else columns)]
    if len(columns) != width:
        raise InputError(f"feature_names has {len(columns)} names; X has {width} columns: give one for each.")
    kinds = range(outputs) if reference.classes is None else reference.classes
    ends = [""] if outputs == 1 else [f" [{kind}]" for kind in kinds]
    W, b = np.full((width * outputs, len(models)), np.nan), np.full((outputs, len(models)), np.nan)
    used = np.full(len(models), np.nan)
    for k, model in enumerate(models):
        if model.coef is not None:
            used[k] = np.any(model.coef != 0, axis=0).sum()
            if model.coef.shape == (outputs, width):
                W[:, k], b[:, k] = model.coef.T.ravel(), model.intercept
    scale = np.repeat(spread(gathered.moments, pooled_mean(gathered.moments)), outputs)
    known, there = ~np.isnan(W).any(axis=0), W != 0
    return dict(
        features=tuple(name + end for name in columns for end in ends),
        outputs=tuple(ends),
        coefficients=W,
        intercepts=b,
        scale=scale,
        used=used,
        extra=np.where(known, (there & ~there[:, [-1]]).sum(axis=0), np.nan),
        missing=np.where(known, (~there & there[:, [-1]]).sum(axis=0), np.nan),
        distance=np.linalg.norm((W - W[:, [-1]]) * scale[:, None], axis=0) / (np.linalg.norm(W[:, -1] * scale) or 1.0),
    )


def _disagreement(federation: InProcess, models: Sequence[_Model], distance: float, kept: Holdout) -> list[str]:
    """A note where federated and pooled coefficients differ: they may, where the predictions cannot."""
    if distance <= SAME:
        return []
    rows = [site.features[kept.mask(site)] for site in federation.sites]
    z, reference = (np.concatenate([model.predictor(A) for A in rows]) for model in models[-2:])
    off = float(np.abs(z - reference).max() / (np.ptp(reference) or 1.0))
    note = f"federated and pooled differ by {distance:.1g} in coefficients and by {off:.1g} in predictions"
    return [note + (", because some columns are combinations of others" if off < 1e-3 * distance else "")]


# --- the scores ---


def _held_out_losses(
    federation: Federation, fitted: Fitted, models: Sequence[_Model], out: Holdout
) -> Program[tuple[np.ndarray, np.ndarray]]:
    """Mean losses (models, sites + 1) on held-out rows, and the weight of these rows at each site. One message."""
    n, scaling = len(federation.names), fitted.prepared.scaling
    usable = [k for k, model in enumerate(models) if model.has_classes_of(models[-1])]
    x = np.array([scaling.model(models[k].coef.T, models[k].intercept) for k in usable])  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]  # usable ones have both
    query = HeldOut(fitted.prepared.spec.objective, out, x)
    requests = [Request((query,), (i,), models=len(x) if i == 0 else 0, counts=i == 0) for i in range(n)]
    sums: list[HeldOutSum] = [summed for (summed,) in (yield requests)]
    rows = np.array([summed.weight for summed in sums])
    losses = np.full((len(models), n + 1), np.nan)
    losses[usable, :-1] = np.array([s.means if s.sites else np.full(len(x), np.nan) for s in sums]).T
    losses[usable, -1] = np.nan_to_num(losses[usable, :-1]) @ rows / rows.sum()
    return losses, rows


def _own_losses(losses: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The mean loss where the model of each site predicts its own rows."""
    own = np.diag(losses)[: len(rows)]
    return np.append(own, own[rows > 0] @ rows[rows > 0] / rows.sum())


def _row_scores(
    federation: InProcess, models: Sequence[_Model], out: Holdout, counts: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Accuracy, D^2 (of counts) or R^2 of every model, and with each site's own model, from held-out rows."""
    measure = "accuracy" if out.by_class else "D^2" if counts else "R^2"
    masks = [out.mask(site) for site in federation.sites]
    by_site = zip(federation.sites, masks, strict=True)
    parts = [(site.features[m], site.labels[m], site.row_weights[m]) for site, m in by_site]
    y, weight = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    where = np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts])

    def predictions(model: _Model) -> np.ndarray:
        """Predicted labels; of classes, 1 where the prediction is right."""
        if model.coef is None:
            return np.full(y.shape, np.nan)
        z = np.concatenate([model.predictor(A) for A, *_ in parts])
        if model.classes is None:
            return (np.exp(z) if counts else z).reshape(y.shape)
        best = (z[:, 0] > 0).astype(int) if z.shape[1] == 1 else z.argmax(axis=1)
        return (model.classes[best] == y).astype(float)

    def score(values: np.ndarray, rows: np.ndarray) -> float:
        """The score of some rows; NaN where it is not defined."""
        values, labels, w = values[rows], y[rows], weight[rows]
        if not len(labels) or np.isnan(values).any():
            return np.nan
        if out.by_class:
            return float(np.average(values, weights=w))
        if (np.ptp(labels, axis=0) == 0).any():
            return np.nan
        measured_by = partial(d2_tweedie_score, power=1) if counts else r2_score
        return float(measured_by(labels, values, sample_weight=w))

    every = np.array([predictions(model) for model in models])
    groups = [*(where == i for i in range(len(parts))), np.ones(len(y), bool)]
    alone = every[where, np.arange(len(y))]  # the local models come first, in the order of the sites
    *scores, own = [[score(values, rows) for rows in groups] for values in (*every, alone)]
    return {measure: (np.array(scores), np.array(own))}


# --- the text ---


def _text(c: SiteComparison) -> str:
    """Heading, summary, a table for every further measure, coefficients."""
    first, *others = c.scores
    parts = [_heading(c), f"{first} on held-out rows", _summary(c, first)]
    for measure in others:
        parts += [f"{measure} on held-out rows", _summary(c, measure, brief=True)]
    parts += ["coefficients (. is exactly zero, - is not defined)", _coefficient_table(c)]
    return "\n\n".join([*parts, *(["\n".join(c.notes)] if c.notes else [])])


def _heading(c: SiteComparison) -> str:
    fitted, out = c.rows.sum(axis=0)
    each = ", ".join(f"{site} {a:g} + {b:g}" for site, (a, b) in zip(c.sites, c.rows, strict=True))
    reference = c.models[-1]
    return (
        f"{c.estimator}\n{fitted:g} rows to fit + {out:g} held out at {len(c.sites)} sites"
        + (f": {each}" if len(c.sites) <= MOST_SITES else "")
        + f"\n{c.communication.rounds} rounds for all models together"
        + (f"\npooled model: {c.pooled_by}" if c.pooled_by else "")
        + f"\nzeros: same as in the {reference} model, or +a -b: a coefficients are zero there only, b are zero here only"
        + f"\ndistance: of the coefficients from the {reference} ones, relative, per standard deviation of the feature"
    )


def _summary(c: SiteComparison, measure: str, brief: bool = False) -> str:
    """One row per model: features, zeros and distance unless brief, then the scores."""
    n, few = len(c.sites), len(c.sites) <= MOST_SITES
    columns = [shorten(site, NAME) for site in c.sites] if few else ["median site", "worst site"]
    about = np.column_stack([c.used, c.extra, c.missing, c.distance])
    names = [f"{name} ({status})" if status else name for name, status in zip(c.models, c.status, strict=True)]
    rows = [
        [name, *([] if brief else _about(*numbers)), *_score_cells(scores, measure)]
        for name, numbers, scores in zip(names, about, c.scores[measure], strict=True)
    ]
    own = ["each site its own", *([] if brief else ["", "", ""]), *_score_cells(c.own[measure], measure)]
    local = rows[:n]
    if not few:
        middle, scores = ([_median(column) for column in table[:n].T] for table in (about, c.scores[measure]))
        local = [
            [f"local: median of {n}", *([] if brief else _about(*middle)), *_score_cells(np.array(scores), measure)]
        ]
    header = ["model", *([] if brief else ["features", "zeros", "distance"]), *columns, "all"]
    return number_table(header, [*local, own, *rows[n:]])


def _about(used: float, extra: float, missing: float, distance: float) -> list[str]:
    if np.isnan(extra):
        return ["-" if np.isnan(used) else f"{used:.0f}", "-", "-"]
    return [f"{used:.0f}", "same" if extra == missing == 0 else f"+{extra:.0f} -{missing:.0f}", f"{distance:.2g}"]


def _score_cells(scores: np.ndarray, measure: str) -> list[str]:
    sites, everyone = scores[:-1], scores[-1]
    if len(sites) > MOST_SITES:
        known = sites[~np.isnan(sites)]
        worst = np.nan if not known.size else known.max() if "loss" in measure else known.min()
        sites = np.array([_median(sites), worst])
    return [_score_cell(value, "loss" in measure) for value in [*sites, everyone]]


def _score_cell(value: float, loss: bool) -> str:
    return "-" if np.isnan(value) else f"{value:.4g}" if loss else f"{round(value, 3) + 0.0:.3f}"  # no -0.000


def _coefficient_table(c: SiteComparison) -> str:
    n = len(c.sites)
    columns = np.arange(0 if n <= MOST_SITES else n, len(c.models))
    rows = np.arange(len(c.features))
    if len(rows) > MOST_FEATURES:
        used = rows[(c.coefficients[:, -2:] != 0).any(axis=1)]
        size = np.abs(c.coefficients[used, -1] * c.scale[used])
        rows = np.sort(used[np.argsort(-size, kind="stable")[:MOST_FEATURES]])
    cells = [[shorten(c.features[j], NAME), *map(_number, c.coefficients[j, columns])] for j in rows]
    cells += [
        [f"(intercept){end}", *map(_number, values)]
        for end, values in zip(c.outputs, c.intercepts[:, columns], strict=True)
    ]
    titles = [*c.sites, *c.models[n:]]
    left = len(c.features) - len(rows)
    table = number_table(["feature", *(shorten(titles[k], NAME) for k in columns)], cells)
    return table + (f"\n({left} more in .coefficients)" if left else "")


def _number(value: float) -> str:
    return "-" if np.isnan(value) else "." if value == 0 else f"{value:.3g}"


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else np.nan

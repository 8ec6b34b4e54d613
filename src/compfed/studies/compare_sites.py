"""`compare_local_federated`: the models of single sites, their average, the federated model and the pooled one.

Every site holds out some of its rows (`Holdout`). All models are fitted to the rows that are kept, the local ones in the
messages of the federated one, and all are scored on the rows that are held out, from sums over the sites. Only the
pooled model, and scores beyond the mean loss, need the rows in this process.
"""

from __future__ import annotations

import csv
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse, vstack
from sklearn.base import clone
from sklearn.metrics import d2_tweedie_score, r2_score

from compfed._utils.files import atomic_path, check_writable, write_text
from compfed._utils.text import join_names, shorten, text_table, versions
from compfed._utils.validation import check_int
from compfed.data import Sites
from compfed.errors import InputError, MissingExtra
from compfed.estimators.base import FederatedModel, place_of
from compfed.estimators.export import communication_record
from compfed.estimators.path_and_cv import CrossValidated
from compfed.estimators.programs.fit import FitOptions, Fitted, fit
from compfed.estimators.programs.plan import plan_comparison
from compfed.estimators.regression import FederatedGammaRegressor, FederatedNegativeBinomialRegressor
from compfed.federation.accounting import Communication
from compfed.federation.queries import HeldOut, HeldOutSum
from compfed.federation.server.program import (
    Federation,
    OneSite,
    Program,
    Request,
    for_site,
    gather,
    run_program,
    state,
)
from compfed.federation.site.in_process import InProcess
from compfed.losses import Poisson
from compfed.losses.offset import unwrapped
from compfed.report.coefficient_figures import comparison_figure
from compfed.report.page import write_report
from compfed.report.run_result import write_result
from compfed.report.showing import shown
from compfed.report.style import save_figure
from compfed.simulation.local_federation import Simulated
from compfed.splits import Holdout, names_rows
from compfed.studies.pooled_fit import fit_pooled

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

AVERAGE, FEDERATED, POOLED = "average of local", "federated", "pooled"
SAME = 1e-6  # coefficients of the federated and the pooled model that differ by less agree
MOST_SITES = 8  # sites with a column of their own in the text; the scores of more are summarised
MOST_FEATURES = 40  # features that the text always lists; of more, those that the last two models use
NAME = 22  # characters of a name in the text
Rows = list[tuple[Any, np.ndarray, np.ndarray]]  # by site: features, labels and weights of its rows


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
    place : {"one process", "network"}
        Where the rows were.
    exact_sums : bool
        Whether sums were exact, as over a network, or in double precision.
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
    place: str
    exact_sums: bool

    def __repr__(self) -> str:
        return f"SiteComparison({self.estimator}, {len(self.sites)} sites, {len(self.models)} models, {len(self.features)} features)"

    def __str__(self) -> str:
        return _text(self)

    def to_pandas(self) -> tuple[DataFrame, DataFrame]:
        """Return (summary, coefficients) as DataFrames: one row per model, and one row per feature."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "pandas", "SiteComparison.to_pandas()") from None
        names, values = self._coefficient_rows()
        coefficients = pandas.DataFrame(values, pandas.Index(names, name="feature"), list(self.models))
        summary = pandas.DataFrame(index=pandas.Index(self.models, name="model"))
        summary["status"], summary["features"] = self.status, self.used
        summary["extra"], summary["missing"], summary["distance"] = self.extra, self.missing, self.distance
        for measure, scores in self.scores.items():
            summary[[f"{measure}: {site}" for site in (*self.sites, "all")]] = scores
        return summary, coefficients

    @shown
    def figure(self) -> Figure:
        """Draw coefficients per standard deviation, model by model, and held-out scores, site by site (matplotlib)."""
        return comparison_figure(self)

    def to_result(self) -> dict[str, Any]:
        """The comparison as plain data: what a run folder keeps, and `cf.write_report` reads."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        about = {"kind": "sites", "created": time.strftime("%Y-%m-%d %H:%M:%S %z"), "versions": versions()}
        return plain | about | {"communication": communication_record(self.communication)}

    def save(self, folder: str | Path) -> list[Path]:
        """Write table.txt, coefficients.csv, the figure, result.json and report.html into a folder; it is made if missing."""
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
        return [
            table,
            coefficients,
            *save_figure(comparison_figure(self), target / "figure"),
            write_result(target, self.to_result()),
            write_report(target),
        ]

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

    Over a federation the sites send sums, and the held-out rows are the same:

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
    here = federation if pooled and isinstance(federation, InProcess) else None
    if pooled and isinstance(estimator, (FederatedGammaRegressor, FederatedNegativeBinomialRegressor)):
        raise InputError(f"pooled=True is not for {type(estimator).__name__}; leave it out, and compare mean losses.")
    if pooled and here is None:
        raise InputError("pooled=True needs the rows in this process. Leave it out over a network.")
    by_class = estimator.fit_options().family.classifies
    kept, out = (Holdout(test_size, seed, by_class, held_out) for held_out in (False, True))
    alphas = _alphas(estimator, federation, kept)
    model = with_alpha(estimator, alphas[-1])
    given = {"estimator": type(model).__name__, **model._changed(), "test_size": test_size, "seed": seed}
    state(federation, plan_comparison(federation, "compare_local_federated", given, model.fit_options()).stated)
    (fitted, local), cost = run_program(federation, _fit_all(federation, model.fit_options(), alphas, kept))
    if fitted.prepared.summary.offset:
        raise InputError(
            "compare_local_federated scores models without an offset; the sites have offsets. Leave them out."
        )
    models, notes = _models(federation.names, fitted, local)
    pooled_by = ""
    if here is not None:
        coef, intercept, pooled_by = fit_pooled(model, here, kept)
        models.append(_CandidateModel(POOLED, coef, intercept, models[-1].classes))
    (losses, rows), scoring_cost = run_program(federation, _held_out_losses(federation, fitted, models, out))
    own, there = np.diag(losses)[: len(rows)], rows > 0  # each site with its own model
    own = np.append(own, own[there] @ rows[there] / rows.sum())
    scores = {"log loss" if by_class else "mean loss": (losses, own)}
    coefficients = _coefficients(models, fitted, feature_names)
    if here is not None:
        counts = isinstance(unwrapped(fitted.prepared.spec.loss), Poisson)
        scores = _row_scores(_rows(here, out), models, by_class, counts) | scores
        notes += _disagreement(_rows(here, kept), models, float(coefficients["distance"][-2]))
    return SiteComparison(
        **coefficients, sites=federation.names, models=tuple(model.label for model in models),
        scores={measure: values for measure, (values, _) in scores.items()},
        own={measure: own for measure, (_, own) in scores.items()},
        rows=np.column_stack([_rows_fitted_to(fitted, local), rows]), status=tuple(model.status for model in models),
        pooled_by=pooled_by, estimator=" ".join(repr(estimator).split()), notes=tuple(notes),
        communication=cost.then(scoring_cost), **place_of(federation),
    )  # fmt: skip


def _federation(estimator: FederatedModel, data: object, y: object, sites: object) -> Federation:
    """The sites to compare, checked."""
    own = type(estimator).__name__
    if not isinstance(estimator, FederatedModel):
        raise InputError(
            f"compare_local_federated needs an estimator of compfed, such as FederatedLasso(alpha=0.1); got {own}."
        )
    for name in ("site_effects", "class_weight"):
        if getattr(estimator, name, None) is not None:
            raise InputError(f"{own}: compare_local_federated compares models without {name}. Leave it out.")
    if names_rows(getattr(estimator, "cv", 5)):
        raise InputError(
            f"{own}: its cv names the rows of one table, and a comparison fits to several parts of it. Give a number of "
            "folds, 'leave-one-site-out' or a splitter."
        )
    if isinstance(data, Sites) or hasattr(data, "send") or hasattr(data, "exchange"):
        if y is not None or sites is not None:
            raise InputError(f"y and sites belong to a table; {type(data).__name__} has its own labels and sites.")
        return Simulated(data) if isinstance(data, Sites) else cast("Federation", data)
    if y is None or isinstance(y, str):
        raise InputError(f"y={y!r}: give the label of every row, such as X['label'], and X without that column.")
    if sites is None:
        raise InputError("sites is missing: give the site of every row, or the name of a column of a DataFrame.")
    table: Any = (data, y, sites, None)  # which is checked here
    return estimator.make_table(*table).federation()


def _rows(federation: InProcess, subset: Holdout) -> Rows:
    """Features, labels and weights of the rows of a subset, site by site."""
    masks = [(site.rows, subset.mask(site.rows)) for site in federation.sites]
    return [(rows.features[m], rows.labels[m], rows.weights[m]) for rows, m in masks]


# --- the models ---


@dataclass(frozen=True)
class _CandidateModel:
    """Coefficients on the original scale; None for a model that cannot be fitted."""

    label: str
    coef: np.ndarray | None  # (outputs, features)
    intercept: np.ndarray | None  # (outputs,)
    classes: np.ndarray | None = None
    status: str = ""

    def has_classes_of(self, other: _CandidateModel) -> bool:
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

    def chosen(A: Any, labels: np.ndarray, weight: np.ndarray, where: np.ndarray | None = None) -> float:
        model: Any = clone(estimator)
        return model.fit(A, labels, sites=where, sample_weight=weight).alpha_

    alphas: list[float | str] = []
    rows = _rows(federation, kept)
    for own in rows:
        try:
            alphas.append(chosen(*own))
        except InputError as problem:
            alphas.append(str(problem))
    X, y, weight = zip(*rows, strict=True)
    table = vstack(X) if issparse(X[0]) else np.concatenate(X)
    where = np.repeat(federation.names, [len(labels) for labels in y])
    return [*alphas, chosen(table, np.concatenate(y), np.concatenate(weight), where)]


Local = Fitted | str  # the fit of a site alone, or why there is none


def _fit_all(
    federation: Federation, options: FitOptions, alphas: Sequence[float | str], kept: Holdout
) -> Program[tuple[Fitted, list[Local]]]:
    """The federated fit and those of the sites alone, in the same messages."""
    n = len(federation.names)
    programs: list[Program[Local]] = [_fit(federation, options, alphas[-1], kept)]
    for i in range(n):  # compiled where the whole federation is
        alone = federation.alone(i) if isinstance(federation, Simulated) else OneSite(federation, i)
        programs.append(for_site(i, n, _fit(alone, options, alphas[i], kept)))
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


def _models(names: Sequence[str], fitted: Fitted, local: Sequence[Local]) -> tuple[list[_CandidateModel], list[str]]:
    """The local models, their average and the federated one, and notes on fits that are missing or not the only one."""
    notes, models, gathered = [], [], fitted.prepared.summary
    all_classes = gathered.labels.classes
    for label, found in zip([*(f"local: {name}" for name in names), FEDERATED], [*local, fitted], strict=True):
        if isinstance(found, str):
            notes.append(f"{label}: {found}")
            models.append(_CandidateModel(label, None, None, status="cannot be fitted"))
            continue
        if not found.minimum.converged:
            relative = found.minimum.certificate.relative
            notes.append(f"{label}: not converged; the gradient mapping is {relative:.1e} of its scale")
        if found.undecided:
            together = join_names(found.undecided)
            notes.append(f"{label}: several minimisers; these coefficients can change together: {together}")
        coef, intercept = found.coef_and_intercept
        classes, status = found.prepared.summary.labels.classes, ""
        if classes is not None and all_classes is not None and len(classes) < len(all_classes):
            status = f"{len(classes)} of {len(all_classes)} classes"
        models.append(_CandidateModel(label, np.atleast_2d(coef), np.atleast_1d(intercept), classes, status))
    *each, federated = models
    weights = np.ones(len(each)) if fitted.prepared.options.equal_sites else _rows_fitted_to(fitted, local)
    usable = [i for i, model in enumerate(each) if model.has_classes_of(federated)]
    average = _CandidateModel(AVERAGE, None, None, status="no local model")
    if usable:
        coefs, intercepts = zip(*((each[i].coef, each[i].intercept) for i in usable), strict=True)
        status = "" if len(usable) == len(each) else f"{len(usable)} of {len(each)} sites"
        coef, intercept = (np.average(values, axis=0, weights=weights[usable]) for values in (coefs, intercepts))
        average = _CandidateModel(AVERAGE, coef, intercept, all_classes, status)
    return [*each, average, federated], notes


def _rows_fitted_to(fitted: Fitted, local: Sequence[Local]) -> np.ndarray:
    """The weight of the rows of each site: from its own fit, and estimated where it has none."""
    estimated = fitted.prepared.summary.totals
    own = [None if isinstance(one, str) else float(one.prepared.summary.totals.sum()) for one in local]
    return np.array([guess if there is None else there for guess, there in zip(estimated, own, strict=True)])


def _coefficients(models: Sequence[_CandidateModel], fitted: Fitted, names: Sequence[str] | None) -> dict[str, Any]:
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
    scale = np.repeat(gathered.spread_about(), outputs)
    known, there = ~np.isnan(W).any(axis=0), W != 0
    distance = np.linalg.norm((W - W[:, [-1]]) * scale[:, None], axis=0) / (np.linalg.norm(W[:, -1] * scale) or 1.0)
    return dict(
        features=tuple(name + end for name in columns for end in ends), outputs=tuple(ends), coefficients=W, intercepts=b,
        scale=scale, used=used, extra=np.where(known, (there & ~there[:, [-1]]).sum(axis=0), np.nan),
        missing=np.where(known, (~there & there[:, [-1]]).sum(axis=0), np.nan), distance=distance,
    )  # fmt: skip


def _disagreement(rows: Rows, models: Sequence[_CandidateModel], distance: float) -> list[str]:
    """A note where federated and pooled coefficients differ: they may, where the predictions cannot."""
    if distance <= SAME:
        return []
    z, reference = (np.concatenate([model.predictor(A) for A, *_ in rows]) for model in models[-2:])
    off = float(np.abs(z - reference).max() / (np.ptp(reference) or 1.0))
    note = f"federated and pooled differ by {distance:.1g} in coefficients and by {off:.1g} in predictions"
    return [note + (", because some columns are combinations of others" if off < 1e-3 * distance else "")]


# --- the scores ---


def _held_out_losses(
    federation: Federation, fitted: Fitted, models: Sequence[_CandidateModel], out: Holdout
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
    losses[usable, :-1] = np.array([s.loss / s.weight if s.sites else np.full(len(x), np.nan) for s in sums]).T
    losses[usable, -1] = np.nan_to_num(losses[usable, :-1]) @ rows / rows.sum()
    return losses, rows


def _row_scores(
    rows: Rows, models: Sequence[_CandidateModel], by_class: bool, counts: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Accuracy, D^2 (of counts) or R^2 of every model, and with each site's own model, from held-out rows."""
    measure = "accuracy" if by_class else "D^2" if counts else "R^2"
    y, weight = (np.concatenate([part[k] for part in rows]) for k in (1, 2))
    where = np.repeat(np.arange(len(rows)), [len(labels) for _, labels, _ in rows])

    def predictions(model: _CandidateModel) -> np.ndarray:
        """Predicted labels; of classes, 1 where the prediction is right."""
        if model.coef is None:
            return np.full(y.shape, np.nan)
        z = np.concatenate([model.predictor(A) for A, *_ in rows])
        if model.classes is None:
            return (np.exp(z) if counts else z).reshape(y.shape)
        best = (z[:, 0] > 0).astype(int) if z.shape[1] == 1 else z.argmax(axis=1)
        return (model.classes[best] == y).astype(float)

    def score(values: np.ndarray, some: np.ndarray) -> float:
        """The score of some rows; NaN where it is not defined."""
        values, labels, w = values[some], y[some], weight[some]
        if not len(labels) or np.isnan(values).any():
            return np.nan
        if by_class:
            return float(np.average(values, weights=w))
        if (np.ptp(labels, axis=0) == 0).any():
            return np.nan
        measured_by = partial(d2_tweedie_score, power=1) if counts else r2_score
        return float(measured_by(labels, values, sample_weight=w))

    every = np.array([predictions(model) for model in models])
    groups = [*(where == i for i in range(len(rows))), np.ones(len(y), bool)]
    alone = every[where, np.arange(len(y))]  # the local models come first, in the order of the sites
    *scores, own = [[score(values, some) for some in groups] for values in (*every, alone)]
    return {measure: (np.array(scores), np.array(own))}


# --- the text ---


def _text(c: SiteComparison) -> str:
    """Heading, summary, a table for every further measure, coefficients."""
    parts = [_heading(c)]
    for k, measure in enumerate(c.scores):
        parts += [f"{measure} on held-out rows", _summary(c, measure, brief=k > 0)]
    parts += ["coefficients (. is exactly zero, - is not defined)", _coefficient_table(c)]
    return "\n\n".join([*parts, *(["\n".join(c.notes)] if c.notes else [])])


def _heading(c: SiteComparison) -> str:
    (fitted, out), reference = c.rows.sum(axis=0), c.models[-1]
    each = ", ".join(f"{site} {a:g} + {b:g}" for site, (a, b) in zip(c.sites, c.rows, strict=True))
    sites = f"{len(c.sites)} sites" + (f": {each}" if len(c.sites) <= MOST_SITES else "")
    pooled = f"pooled model: {c.pooled_by}\n" if c.pooled_by else ""
    return (
        f"{c.estimator}\n{fitted:g} rows to fit + {out:g} held out at {sites}\n"
        f"{c.communication.rounds} rounds for all models together\n{pooled}"
        f"zeros: same as in the {reference} model, or +a -b: a coefficients are zero there only, b are zero here only\n"
        f"distance: of the coefficients from the {reference} ones, relative, per standard deviation of the feature"
    )


def _summary(c: SiteComparison, measure: str, brief: bool) -> str:
    """One row per model: features, zeros and distance unless brief, then the scores. Many sites are summarised."""
    n, few, loss = len(c.sites), len(c.sites) <= MOST_SITES, "loss" in measure
    names = [f"{name} ({status})" if status else name for name, status in zip(c.models, c.status, strict=True)]
    about, scores = np.column_stack([c.used, c.extra, c.missing, c.distance]), c.scores[measure]
    if not few:
        names = [f"local: median of {n}", *names[n:]]
        about, scores = (np.vstack([_median(values[:n]), values[n:]]) for values in (about, scores))

    def score_cells(values: np.ndarray) -> list[str]:
        if not few:
            sites, worst = values[:-1], np.fmax if loss else np.fmin  # which leave NaN out
            values = np.array([_median(sites), worst.reduce(sites), values[-1]])
        return ["-" if np.isnan(v) else f"{v:.4g}" if loss else f"{round(v, 3) + 0.0:.3f}" for v in values]  # no -0.000

    rows = [[name, *_about(*a), *score_cells(s)] for name, a, s in zip(names, about, scores, strict=True)]
    rows.insert(len(rows) - len(c.models) + n, ["each site its own", "", "", "", *score_cells(c.own[measure])])
    columns = [shorten(site, NAME) for site in c.sites] if few else ["median site", "worst site"]
    table = [["model", "features", "zeros", "distance", *columns, "all"], *rows]
    header, *rows = [[row[0], *row[4:]] for row in table] if brief else table
    return text_table(header, rows, numbers=True)


def _about(used: float, extra: float, missing: float, distance: float) -> list[str]:
    if np.isnan(extra):
        return ["-" if np.isnan(used) else f"{used:.0f}", "-", "-"]
    return [f"{used:.0f}", "same" if extra == missing == 0 else f"+{extra:.0f} -{missing:.0f}", f"{distance:.2g}"]


def _coefficient_table(c: SiteComparison) -> str:
    """The local models are left out where there are many, and of many features all but the largest."""
    first = 0 if len(c.sites) <= MOST_SITES else len(c.sites)
    rows = np.arange(len(c.features))
    if len(rows) > MOST_FEATURES:
        used = rows[(c.coefficients[:, -2:] != 0).any(axis=1)]
        size = np.abs(c.coefficients[used, -1] * c.scale[used])
        rows = np.sort(used[np.argsort(-size, kind="stable")[:MOST_FEATURES]])
    names = [*(shorten(c.features[j], NAME) for j in rows), *(f"(intercept){end}" for end in c.outputs)]
    values = np.vstack([c.coefficients[rows], c.intercepts])[:, first:]
    cells = [["-" if np.isnan(v) else "." if v == 0 else f"{v:.3g}" for v in row] for row in values]
    titles = [shorten(title, NAME) for title in (*c.sites, *c.models[len(c.sites) :])[first:]]
    table = text_table(
        ["feature", *titles], [[name, *row] for name, row in zip(names, cells, strict=True)], numbers=True
    )
    left = len(c.features) - len(rows)
    return table + (f"\n({left} more in .coefficients)" if left else "")


def _median(values: np.ndarray) -> np.ndarray:
    """The median of what is a number, along the first axis; NaN where nothing is."""
    return np.ma.filled(np.ma.median(np.ma.masked_invalid(values), axis=0), np.nan)

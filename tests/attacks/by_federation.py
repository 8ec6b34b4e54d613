"""Attacks with whole runs: ordinary estimators, totals of several sites, a site that lies, labels and refusals."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from attacks.by_models import direction, rank_ones
from attacks.by_subsets import Sum, batch_masks, fedavg_run, rows_of_sums, update_query
from attacks.target import Target, distinct, unscaled

import compfed as cf
from compfed.errors import InputError
from compfed.federation import Communication, Describe, Evaluate, InProcess, Moments, Query, Refusal, Request, Site
from compfed.federation.codec import digest
from compfed.federation.enrolment import Enrolment
from compfed.federation.query import Replies
from compfed.federation.server.program import Summed
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Logistic, Poisson, Squared
from compfed.splits import SiteFold


class Enough(Exception):
    """The attacker has what it wants."""


class SpiedSite(Site):
    """The site of a target, in a federation whose server keeps every reply: the sum over one site tells as much."""

    def __init__(self, target: Target, until: int):
        site = target._site
        self.rows, self.guard, self.memory = site.rows, site.guard, site.memory
        self.target, self.until = target, until
        self.seen: list[tuple[Query, Any]] = []

    def enrol(self) -> Enrolment:
        """The enrolment without the rules of the site, so that the program asks for what they refuse."""
        return replace(super().enrol(), min_rows=1, buckets=self.rows.count, max_hessian_share=np.inf)

    def reply(self, queries: Sequence[Query]) -> Replies:
        replies = self.target.ask(*queries)
        self.seen += zip(queries, replies, strict=True)
        if len(self.seen) >= self.until:
            raise Enough
        return replies


class Spied(InProcess):
    """A federation of one site, whose server keeps every reply."""

    def __init__(self, target: Target, until: int = 20_000):
        self.site = SpiedSite(target, until)
        super().__init__([self.site])

    @property
    def seen(self) -> list[tuple[Query, Any]]:
        return self.site.seen

    def run(self, estimator: Any) -> None:
        """Run an ordinary estimator to its end, or until there is enough."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                estimator.fit_federation(self)
        except (Enough, InputError):
            pass


def front_door(target: Target) -> np.ndarray:
    """An ordinary cross-validation with a fold per row: the moments that it scales by, subtracted from the total."""
    n = target.rows
    for cv in (n, n // 2, n // 5, n // 10, 5, 2):
        spied = Spied(target, until=2 * cv)
        if cv >= 2:
            spied.run(cf.FederatedLogisticRegressionCV(cv=cv, n_alphas=2, standardize=True))
        sums: list[Sum] = [
            (query.subset, reply.weight, reply.weight * (reply.mean + reply.mean_low))
            for query, reply in spied.seen
            if isinstance(query, Moments) and query.subset is not None and not isinstance(reply, Refusal)
        ]
        if sums:
            return rows_of_sums(target, sums)
    return np.empty((0, target.width))


def moments_of_a_row(target: Target) -> np.ndarray:
    """The moments of a site of one row are the row."""
    (reply,) = target.ask(Moments())
    return np.empty((0, target.width)) if isinstance(reply, Refusal) else reply.mean[None]


def huber_parameters(target: Target) -> np.ndarray:
    """A certified fit of one column with a tiny delta and no penalty: the Hessian at its end rests on two rows.

    The target has one column, and numbers as labels. Returns the feature and the label of two rows: from the sums of h, h a
    and h a^2 over two rows follow both a, and the residuals there are nearly zero.
    """
    spied = Spied(target)
    spied.run(cf.FederatedHuber(delta=1e-4, alpha=0.0, algorithm="ProximalNewton"))
    fits = [
        (query.objective, query.x[-1], reply.hessian[-1])
        for query, reply in spied.seen
        if isinstance(query, Evaluate) and getattr(reply, "hessian", None) is not None and query.x.shape[1] == 2
    ]
    if not fits:
        return np.empty((0, 2))
    objective, x, packed = fits[-1]
    H = objective.loss.unpack_hessian(packed, np.arange(2))
    mean = H[0, 1] / H[1, 1]
    spread = np.sqrt(max(H[0, 0] / H[1, 1] - mean**2, 0.0))
    a = np.array([mean - spread, mean + spread])
    assert objective.scaling is not None
    return np.column_stack([unscaled(objective.scaling, a[:, None])[:, 0], a * x[0] + x[1]])


def hessians_of_an_honest_fit(target: Target, estimator: Any) -> np.ndarray:
    """An ordinary fit of a loss whose second derivative jumps: two of its Hessians differ by a a^T where one row has moved."""
    spied = Spied(target)
    spied.run(estimator)
    by_objective: dict[str, list[np.ndarray]] = {}
    scalings: dict[str, FeatureScaling] = {}
    for query, reply in spied.seen:
        if isinstance(query, Evaluate) and getattr(reply, "hessian", None) is not None:
            name = digest(query.objective)
            scalings[name] = query.objective.scaling  # pyright: ignore[reportArgumentType]
            packed = [query.objective.loss.unpack_hessian(h, query.coords) for h in reply.hessian]
            by_objective.setdefault(name, []).extend(packed)
    found: list[tuple[float, np.ndarray]] = []
    for name, H in by_objective.items():
        one, other = np.triu_indices(len(H), 1)
        sizes, vectors = np.linalg.eigh(np.array(H)[one] - np.array(H)[other])
        first, second = np.sort(np.abs(sizes), axis=1)[:, [-1, -2]].T
        for k in np.flatnonzero((second < 0.02 * first) & (first > 1e-6)):
            v = vectors[k][:, np.abs(sizes[k]).argmax()]
            found.append((second[k] / first[k], unscaled(scalings[name], v[:-1] / v[-1])))
    found.sort(key=lambda pair: pair[0])
    return distinct([row for _, row in found], target, near=0.02)


class SpiedTotals(InProcess):
    """Sites in this process, whose server keeps the total of every Hessian, as it would have it under masks."""

    def __init__(self, sites: Sequence[Site]):
        super().__init__(sites)
        self.seen: dict[str, tuple[FeatureScaling, list[np.ndarray]]] = {}

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        sums, cost = super().exchange(requests)
        for query, total in asked_and_summed(requests, sums):
            if isinstance(query, Evaluate) and query.coords is not None and not isinstance(total, Refusal):
                loss, scaling = query.objective.loss, query.objective.scaling
                assert scaling is not None
                kept = self.seen.setdefault(digest(query.objective), (scaling, []))[1]
                kept += [loss.unpack_hessian(packed, query.coords) for packed in total.hessian]
        return sums, cost


def asked_and_summed(requests: Sequence[Request], sums: Sequence[Summed]) -> Iterator[tuple[Query, Any]]:
    """Each query of a message with its sum."""
    for request, found in zip(requests, sums, strict=True):
        yield from zip(request.queries, found, strict=True)


def span_of_an_honest_fit(sites: Sequence[Site], estimator: Any) -> np.ndarray:
    """An ordinary fit over several sites: rows that stand out are in the span of the total Hessians that it asks for."""
    federation = SpiedTotals(sites)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit_federation(federation)
    found = list[np.ndarray]()
    for scaling, hessians in federation.seen.values():
        H = np.array([h for h in hessians if len(h) == len(hessians[0])])
        singular = np.linalg.svd(H.reshape(len(H), -1), compute_uv=False)
        for smallest in (1e-12, 1e-9, 1e-6):
            rows = rank_ones(H, min(int((singular > smallest * singular[0]).sum()), 120))
            found += list(unscaled(scaling, rows[:, :-1]))
    target = Target(sites[0])
    target.rows = sum(len(site.rows.labels) for site in sites)
    return distinct(found, target, near=1e-3)


# --- totals of several sites ---


class Sums:
    """Sites whose server sees totals only, as under masks."""

    def __init__(self, sites: Sequence[Site]):
        self.targets = [Target(site) for site in sites]
        self.rows = np.array([target.rows for target in self.targets])

    def moments(self) -> tuple[float, np.ndarray] | None:
        """The number of rows and the sum of each column."""
        replies = [target.ask(Moments())[0] for target in self.targets]
        if any(isinstance(reply, Refusal) for reply in replies):
            return None
        sums = np.array([r.weight * (r.mean + r.mean_low) for r in replies])
        return float(sum(r.weight for r in replies)), sums.sum(axis=0)

    def updates(self, run: Any, rounds: Sequence[int]) -> np.ndarray | None:
        """The sum over the sites of rows times update, for each round."""
        queries, total = [update_query(run, r) for r in rounds], 0.0
        for target in self.targets:
            replies = target.ask(*queries)
            if any(isinstance(reply, Refusal) for reply in replies):
                return None
            total = total + target.rows * np.array([reply.u["delta"] for reply in replies])
        return np.asarray(total)

    def gradients_of_sites(self, objective: ObjectiveSpec, x: np.ndarray) -> np.ndarray:
        """For each site the sum of its gradients: leave-one-site-out asks for the rows of one site (`SiteFold`)."""
        found = []
        for i, target in enumerate(self.targets):
            (reply,) = target.ask(Evaluate(replace(objective, subset=SiteFold(i, held_out=True)), x[None]))
            found.append(np.full(x.size, np.nan) if isinstance(reply, Refusal) else target.rows * reply.gradient[0])
        return np.array(found)


def total_batches(sums: Sums) -> np.ndarray:
    """FedAvg with batches of half the smallest site: rows of all sites by least squares over the totals alone."""
    width, batch = sums.targets[0].width, int(sums.rows.min()) // 2
    moments = sums.moments()
    if moments is None:
        return np.empty((0, width))
    centre = moments[1] / moments[0]
    scaling = FeatureScaling(centre, np.maximum(np.abs(centre), 1e-3), intercept=True)
    run = fedavg_run(ObjectiveSpec(Logistic(), scaling), width + 1, int(sums.rows.max()), batch)
    rounds = np.arange(int(sums.rows.sum()) + 31)
    total = sums.updates(run, rounds.tolist())
    if total is None:
        return np.empty((0, width))
    masks = [target.rows / batch * batch_masks(run, rounds, target.number, target.rows) for target in sums.targets]
    left, right = np.hstack(masks), -total / run.algorithm.eta  # pyright: ignore[reportAttributeAccessIssue]
    # every batch of a site is equally large, so its mean is in no sum; another query has it
    whole = np.repeat(np.eye(len(sums.rows)), sums.rows, axis=1)
    means = sums.gradients_of_sites(run.objective, run.x0)
    answered = np.isfinite(means[:, -1])
    left, right = np.vstack([left, whole[answered]]), np.vstack([right, means[answered]])
    solved = np.linalg.lstsq(left, right, rcond=1e-12)[0]
    return unscaled(scaling, solved[:, :-1] / solved[:, -1:])


# --- a site that lies ---


class LyingSite(Site):
    """A site whose false gradients and Hessians send the honest program to models of its choice.

    Its curvature is so large that the Newton step goes where its gradient says; its values fall as fast as the search
    demands. It is shown the sums, subtracts its own part, and has the gradient of the others at the model it chose: on a
    half-space, whose intercept it moves by bisection.
    """

    CURVATURE, SLOPE = 1e3, 1e4

    def __init__(self, honest: Site, share: float, others: int, lies: int):
        self.rows, self.guard, self.memory = honest.rows, honest.guard, honest.memory
        self.share, self.others, self.lies = share, others, lies
        self.u = direction(self.rows.width, 0)
        self.value = 1e20
        self.scaling: FeatureScaling | None = None
        # intercepts, and the sum of the others' gradients
        self.t, self.G = np.empty(0), np.empty((0, self.rows.width + 1))
        self.said = np.zeros(self.rows.width + 1)  # its last gradient
        self.goals = list(np.linspace(-8.0, 8.0, 17))

    def reply(self, queries: Sequence[Query]) -> Replies:
        return tuple(self._reply(q, honest) for q, honest in zip(queries, super().reply(queries), strict=True))

    def _reply(self, query: Query, honest: Any) -> Any:
        if not (steerable(query) and self.lies) or isinstance(honest, Refusal):
            return honest
        assert isinstance(query, Evaluate)
        assert query.coords is not None
        self.lies, self.scaling = self.lies - 1, query.objective.scaling
        if not self.goals:
            crowded = np.flatnonzero(np.abs(np.diff(self.G[:, -1])) > 1.5)
            self.goals = list(0.5 * (self.t[crowded] + self.t[crowded + 1])) or [0.0]
        step = self.SLOPE * np.append(self.u, -self.goals.pop(0)) - query.x[0]
        c, w = self.CURVATURE / self.share, len(query.coords)
        self.value -= 10 * c * float(step @ step)
        H = c * np.eye(w)[np.triu_indices(w)]
        self.said = -c * step
        return honest._replace(value=np.array([self.value]), gradient=self.said[None], hessian=H[None])

    def show(self, x: np.ndarray, total: np.ndarray) -> None:
        """The sum over the rows of all sites at a model; those of another direction do not help."""
        gradient = total - len(self.rows.labels) * self.said
        size = np.linalg.norm(x[:-1])
        if size > 0.1 * self.SLOPE and self.u @ x[:-1] > (1 - 1e-9) * size:
            place = np.searchsorted(self.t, -x[-1] / size)
            self.t, self.G = np.insert(self.t, place, -x[-1] / size), np.insert(self.G, place, gradient, axis=0)


def steerable(query: Query) -> bool:
    """Whether the reply decides where the next model is: one with a full Hessian."""
    return isinstance(query, Evaluate) and query.coords is not None and len(query.coords) == query.x.shape[1] > 2


class Shown(InProcess):
    """A federation whose sites are shown the sums, as they must be where they check them. The last site lies."""

    def __init__(self, victims: Sequence[Site], liar: LyingSite):
        super().__init__([*victims, liar])
        self.liar, self.messages_sent = liar, 0
        self.rows = sum(len(site.rows.labels) for site in self.sites)

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        self.messages_sent += 1
        sums, cost = super().exchange(requests)
        for query, mean in asked_and_summed(requests, sums):
            if isinstance(query, Evaluate) and steerable(query) and not isinstance(mean, Refusal):
                self.liar.show(query.x[0], self.rows * mean.gradient[0])
        return sums, cost


def lying_site(victims: Sequence[Site], liar: Site, lies: int = 400) -> tuple[np.ndarray, int]:
    """One honest fit of a logistic regression, steered: rows of the other sites, and the messages it took."""
    rows = np.array([len(site.rows.labels) for site in (*victims, liar)])
    false = LyingSite(liar, rows[-1] / rows.sum(), int(rows[:-1].sum()), lies)
    federation = Shown(victims, false)
    estimator: Any = cf.FederatedLogisticRegression(alpha=0.01, algorithm="ProximalNewton")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit_federation(federation)
    except InputError:  # a site refused, or the run failed: what was shown until then remains
        pass
    if false.scaling is None:
        return np.empty((0, liar.rows.width)), federation.messages_sent
    steps = np.diff(false.G, axis=0)
    single = np.abs(np.abs(steps[:, -1]) - 1) < 1e-2
    found = unscaled(false.scaling, steps[single, :-1] / steps[single, -1:])
    return found[: false.others], federation.messages_sent


# --- labels and refusals ---


def listed_labels(target: Target) -> dict[float, float]:
    """Labels that are whole numbers are listed as classes, each with its count."""
    (reply,) = target.ask(Describe(classes=True))
    return (
        {}
        if isinstance(reply, Refusal)
        else dict(zip(reply.classes.tolist(), reply.class_weights.tolist(), strict=True))
    )


def labels_by_refusals(target: Target, values: Sequence[float]) -> list[float]:
    """Whether the site answers with all of these classes but one: those without which it refuses are labels."""
    scaling, x = target.scaling(), np.zeros((1, target.width + 1))
    full = np.sort(np.asarray(values, float))
    queries = [Evaluate(ObjectiveSpec(Squared(), scaling, classes=full), x)]
    queries += [Evaluate(ObjectiveSpec(Squared(), scaling, classes=full[full != value]), x) for value in full]
    first, *rest = target.ask(*queries)
    if isinstance(first, Refusal):  # it refuses these classes whatever they are
        return []
    return [float(value) for value, reply in zip(full, rest, strict=True) if isinstance(reply, Refusal)]


def negative_label(target: Target) -> bool:
    """Poisson refuses labels below 0: one bit about the smallest label of a site."""
    scaling, x = target.scaling(), np.zeros((1, target.width + 1))
    (squared, poisson) = target.ask(*[Evaluate(ObjectiveSpec(loss, scaling), x) for loss in (Squared(), Poisson())])
    return isinstance(poisson, Refusal) and not isinstance(squared, Refusal)

"""Attacks on what a message leaves open: two weightings, hold-outs by share, fields that nothing binds, rounding, rows nobody looks at.

    PYTHONPATH=src:tests python -m attacks.by_protocol

prints the table "Weightings, hold-outs and fields" of README.md: what each attack reads from sites with the default policy. Those of
masked sites run against real site services, with their ledgers, masks and session files.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from attacks import by_runs
from attacks.by_operator import Operator, Refused, added, rows
from attacks.measure import recovered
from attacks.target import POLICY, SumTarget, Target, make_site, unscaled
from network.memory_link import furnish, remote

import compfed as cf
from compfed.federation import Describe, Evaluate, HeldOut, LocalUpdate, Moments, Refusal, Site, exact_sum
from compfed.federation.adding import MessageLayout, decode
from compfed.federation.query import Weighted
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.losses import Huber, Logistic, Squared
from compfed.network.envelope import Body, Header, query_hash
from compfed.splits import Fold, Holdout

SIZES, NAMES, WIDTH = (143, 121, 97, 160), ("north", "south", "east", "west"), 5
NO_COLUMNS = FeatureScaling(np.zeros(0), np.ones(0), True)
TABLE = cf.data.bundled.breast_cancer()


def parts(sizes: Sequence[int] = SIZES, width: int = WIDTH) -> cf.data.Sites:
    """Sites of so many rows, drawn from the breast cancer table."""
    order, ends = np.random.default_rng(1).permutation(len(TABLE.y)), np.cumsum(sizes)
    chosen = [order[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    A, y = [TABLE.X[here, :width] for here in chosen], [TABLE.y[here].astype(float) for here in chosen]
    return cf.data.from_arrays(A, y, list(NAMES[: len(sizes)]))


def masked_sites(folder: Path, sites: cf.data.Sites, disclosure: str = "") -> list[Path]:
    return furnish(folder, sites, "", disclosure, secure_sum=True)


def whole_counts(sizes: Sequence[int], total: float, share: float) -> list[tuple[int, ...]]:
    """All whole numbers k_i <= n_i of four sites with sum k_i and sum k_i / n_i as given."""
    a, b, c, d = sizes
    k1, k2, k3 = np.meshgrid(np.arange(a + 1), np.arange(b + 1), np.arange(c + 1), indexing="ij")
    k4 = round(total) - k1 - k2 - k3
    fits = (k4 >= 0) & (k4 <= d) & (np.abs(k1 / a + k2 / b + k3 / c + k4 / d - share) < 1e-9)
    return [tuple(map(int, each)) for each in zip(k1[fits], k2[fits], k3[fits], k4[fits], strict=True)]


# --- two weightings of the same numbers ---


def class_counts_of_an_honest_run(folder: Path) -> str:
    """An ordinary fit, whose operator keeps what it receives: the classes of each of four masked sites."""
    sites = parts()
    federation, _ = remote(masked_sites(folder, sites))
    seen: list[Any] = []
    exchange = federation.exchange

    def kept(requests: Any) -> Any:
        sums, cost = exchange(requests)
        seen.extend(summed for request in sums for summed in request)
        return sums, cost

    federation.exchange = kept  # pyright: ignore[reportAttributeAccessIssue]
    cf.FederatedLogisticRegression(alpha=0.05).fit_federation(federation)
    both = [s for s in seen if hasattr(s, "class_weights") and getattr(s, "class_shares", None) is not None]
    truth = tuple(int((y == 1).sum()) for y in sites.labels)
    for described in both:
        found = whole_counts(SIZES, described.class_weights[1], described.class_shares[1])
        if truth in found:
            return f"the class counts of four sites, one of {len(found)} choices"
    return "nothing: one weighting travels"


def _weightings(query: Any) -> list[Any]:
    return [rows(query), Weighted(query, "sites"), Weighted(query, "once")]


def class_counts_asked_for(folder: Path) -> str:
    """The same, where the operator asks for each weighting there is."""
    sites = parts()
    operator = Operator(masked_sites(folder, sites))
    operator.enrol()
    truth, seen = tuple(int((y == 1).sum()) for y in sites.labels), []
    at_zero = Evaluate(ObjectiveSpec(Squared(), NO_COLUMNS, columns=np.empty(0, int)), np.zeros((1, 1)))
    for query in (Describe(classes=True), at_zero):
        seen = []
        for asked in _weightings(query):
            try:
                (summed,), _ = operator.totals([asked])
            except Refused as refused:
                operator.number = service_number(operator)
                seen.append(str(refused))
                continue
            if isinstance(query, Evaluate):  # minus the mean label
                seen.append(-float(summed.gradient[0, 0]))
            else:
                seen += [float(summed.class_weights[1]), float(getattr(summed, "class_shares", [np.nan, np.nan])[1])]
        numbers = [n for n in seen if isinstance(n, float) and np.isfinite(n)]
        for one in numbers:
            for other in numbers:
                for count in (one, one * sum(SIZES)):
                    for share in (other, other * len(SIZES)):
                        if abs(count - round(count)) < 1e-6 and truth in whole_counts(SIZES, count, share):
                            return f"the class counts of four sites, by {type(query).__name__}"
    return f"nothing: {next((n for n in seen if isinstance(n, str)), 'one weighting')}"


def service_number(operator: Operator) -> int:
    """The last message that the first site answered."""
    service = operator.services[operator.names[0]]
    kept = (service.settings.state / "runs" / operator.run).glob("*.reply")
    return max((int(path.stem) for path in kept), default=1)


def third_site_of_three(folder: Path) -> str:
    """Three sites, one of which helps: the column sums of each of the other two from moments in two weightings."""
    sizes = SIZES[:3]
    sites = parts(sizes)
    operator = Operator(masked_sites(folder, sites))
    operator.enrol()
    try:
        (by_rows,), _ = operator.totals([rows(Moments())])
        (by_sites,), _ = operator.totals([Weighted(Moments(), "sites")])
    except Refused as refused:
        return f"nothing: {refused}"
    mine = sites.features[0].sum(axis=0)
    rest, shares = by_rows.mean[0] - mine, by_sites.mean[0] - mine / sizes[0]
    third = (shares - rest / sizes[1]) / (1 / sizes[2] - 1 / sizes[1])
    truth = sites.features[2].sum(axis=0)
    error = float(np.abs(third / truth - 1).max())
    return f"the column sums of the third site, to {error:.0e}" if error < 1e-6 else "nothing"


# --- hold-outs by share ---


def buckets_by_share(folder: Path) -> str:
    """Hold-outs of slightly different shares: where one site alone rounds otherwise, the difference is a bucket of that site."""
    sites = parts()
    operator = Operator(masked_sites(folder, sites))
    operator.enrol()
    shares = np.unique([(2 * k + 1) / (2 * b) + e for b in range(2, 20) for k in range(b) for e in (-1e-4, 1e-4)])
    shares = shares[(shares > 0) & (shares < 1)].tolist()
    try:
        sums, _ = operator.totals([rows(Moments(Holdout(share, 0, True, True))) for share in shares])
    except Refused as refused:
        return f"nothing: {refused}"
    opened = [operator.services[name].open().rows for name in NAMES]
    for place, own in enumerate(opened):
        own.index = own.number = place
    own_buckets = [own.features[own.buckets_of_rows == b].sum(axis=0) for own in opened for b in range(own.buckets)]
    read = set()
    for one, other in itertools.pairwise(sums):
        difference = other.mean[0] - one.mean[0]
        for k, truth in enumerate(own_buckets):
            if np.abs(difference / truth - 1).max() < 1e-6:
                read.add(k)
    return (
        f"{len(read)} sums over single buckets of single sites"
        if read
        else "nothing: every site holds out the same groups"
    )


# --- fields that nothing binds ---


def state_of_one_site(folder: Path, field: str) -> str:
    """Rounds whose state at one site is another than at the others: what it adds differs by its own column means.

    Scaffold's c_i is the gradient of the round before. Two sessions end with the same query to all sites. In the second, one site
    has another c_i: `again` gives it another round to repeat ("again"), or a message before, whose sum is noise ("noise").
    """
    sites = parts()
    paths = masked_sites(folder, sites)
    run = RunSpec(
        0, cf.algorithms.Scaffold(eta=1e-3, tau=1, option="I"), cf.regularisers.Zero(),
        ObjectiveSpec(Squared(), FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), True)), np.zeros(WIDTH + 1), 0, None, 1000,
    )  # fmt: skip
    zero, one = np.zeros(WIDTH + 1), np.eye(WIDTH + 1)[-1]

    def update(r: int, x: np.ndarray) -> LocalUpdate:
        return LocalUpdate(run, r, 0, {"x": x, "c": zero})

    def session(name: str, attacked: bool) -> np.ndarray:
        operator = Operator(paths, name)
        operator.enrol()
        first = [rows(update(0, zero))]
        with contextlib.suppress(Refused):
            operator.words(
                {n: [rows(update(0, one))] if attacked and field == "noise" and n == "west" else first for n in NAMES}
            )
        operator.number += 1
        asked = (rows(update(1, zero)),)
        enrolments = tuple(np.frombuffer(operator.signed[n], np.uint8) for n in NAMES)
        found = {}
        for place, n in enumerate(NAMES):
            header = Header(name, operator.number, operator.number - 1, place, NAMES, query_hash(asked), "")
            body = Body(asked, (), enrolments)
            if attacked and field == "again" and n == "west":
                header, body = header._replace(after=0), body._replace(again=(update(0, one),))
            found[n] = operator._sent(n, header, body)["words"]
        total = added(found)
        exact_sum.check_total(total, len(NAMES))
        (summed,) = decode(MessageLayout(asked, operator.agreement), total[exact_sum.FRAME :], [range(4)])
        return np.asarray(summed.u.dc)

    try:
        apart = session("attacked", True) - session("honest", False)
    except (Refused, cf.InputError) as refused:
        return f"nothing: {refused}"
    means = -apart[:WIDTH] * sum(SIZES) / SIZES[3]
    error = float(np.abs(means / sites.features[3].mean(axis=0) - 1).max())
    return f"the column means of one of four sites, to {error:.0e}" if error < 1e-6 else f"nothing ({error:.0e})"


# --- half-spaces by rounding ---

STEP = 16.0


def rounded_half_spaces(
    target: Target, constant: tuple[float, float] = (-1e300, 1e300), messages: int = 40
) -> np.ndarray:
    """Squared loss at models whose predictions round to 0 or 16: sums over the rows of a half-space, bisected to single rows.

    Three columns whose centre and scale are so large that every scaled value is 1 add s, then H and -H, to u a. H is so large
    that u a + s + H is a multiple of 16. The rows that two such sums differ by are counted by the gradient of the intercept.
    """
    honest = target.scaling()
    free = target.width - 3
    centre, scale = honest.centre.copy(), honest.scale.copy()
    centre[free:], scale[free:] = constant
    objective = ObjectiveSpec(Squared(), FeatureScaling(centre, scale, intercept=True))
    u = np.random.default_rng(0).normal(size=free) * 0.1
    H = 1.5 * 2.0**52 * STEP

    def sums(at: np.ndarray) -> np.ndarray:
        X = np.zeros((len(at), target.width + 1))
        X[:, :free], X[:, free], X[:, free + 1], X[:, free + 2] = u, at, H, -H
        X = np.concatenate(
            [X, np.repeat(X[:1], max(64 - len(X), 0), axis=0)]
        )  # a product of few models adds in another order
        (reply,) = target.ask(Evaluate(objective, X))
        found = np.full(X.shape, np.nan) if isinstance(reply, Refusal) else reply.gradient
        return found[: len(at)] * target.rows / STEP

    at = np.linspace(-STEP, 2 * STEP, 65)
    found = sums(at)
    for _ in range(messages):
        counts = np.diff(found[:, -1])
        split = np.flatnonzero((np.abs(counts - np.rint(counts)) < 1e-3) & (counts > 1.5) & (np.diff(at) > 1e-12))
        if not len(split):
            break
        new = (at[split] + at[split + 1]) / 2
        at, found = np.concatenate([at, new]), np.concatenate([found, sums(new)])
        order = np.argsort(at)
        at, found = at[order], found[order]
    differences = np.diff(found, axis=0)
    single = differences[np.abs(differences[:, -1] - 1.0) < 1e-3]
    candidates = np.full((len(single), target.width), np.nan)
    candidates[:, :free] = unscaled(replace(honest, centre=centre[:free], scale=scale[:free]), single[:, :free])
    return candidates[: target.rows]


def two_constant_columns(_: Path) -> str:
    """The same at a site where three columns are constant, which needs no strange centre or scale."""
    table = cf.data.bundled.breast_cancer()
    here = np.flatnonzero(table.sites == 0)
    A = table.X[here].copy()
    A[:, 27:] = 1.0
    target = Target(make_site(A, table.y[here].astype(float), POLICY))
    n = recovered(rounded_half_spaces(target, (0.0, 1.0)), A)
    return f"{n} of {len(A)} rows ({target.main_reason()})"


def wide_parts() -> list[Any]:
    table = cf.data.bundled.breast_cancer()
    here = [np.flatnonzero(table.sites == k) for k in np.unique(table.sites)]
    return [make_site(table.X[r], table.y[r].astype(float), POLICY, k) for k, r in enumerate(here)]


def half_spaces(_: Path) -> str:
    sites = wide_parts()
    one, every = Target(sites[0]), SumTarget(wide_parts())
    A = sites[0].rows.features
    n = recovered(rounded_half_spaces(one), A)
    together = np.concatenate([site.rows.features for site in sites])
    m = recovered(rounded_half_spaces(every), together)
    said = f" ({one.main_reason()})" if one.refusals else ""
    return f"{n} of {len(A)} rows of one site, {m} of {len(together)} from totals of four{said}"


# --- rows that no rule looks at ---


def least_held_out_rows(_: Path) -> str:
    """Held-out losses of logistic models, of which the effective rows held out are as few as can be."""
    site = wide_parts()[0]
    target = Target(site)
    scaling, fold = target.scaling(), Fold(0, 5, 0, np.zeros(4, int), True, True)
    objective = ObjectiveSpec(Logistic(), scaling, np.array([0.0, 1.0]), replace(fold, held_out=False))
    rng, least, digits = np.random.default_rng(0), np.inf, 0.0
    A = (site.rows.features - scaling.centre) / scaling.scale
    out = site.rows.weights_of(fold) > 0
    for _model in range(400):
        x = rng.normal(size=target.width + 1) * rng.choice([0.5, 1.0, 2.0, 4.0]) / np.sqrt(target.width)
        x[-1] = rng.normal() * 4
        (reply,) = target.ask(HeldOut(objective, fold, x[None]))
        if isinstance(reply, Refusal):
            continue
        z = (A @ x[:-1] + x[-1])[out]
        s = 1 / (1 + np.exp(-z))
        h, loss = s * (1 - s), np.logaddexp(0.0, np.where(site.rows.labels[out] > 0, -z, z))
        rest = h.sum() ** 2 / (h * h).sum()
        if rest < least:
            least, digits = rest, abs(float(reply.loss[0]) / loss.mean() - 1)
    return f"a held-out loss that rests on {least:.1f} of {int(out.sum())} rows, to {digits:.0e}"


def _labelled() -> tuple[Target, np.ndarray, float]:
    table = cf.data.bundled.breast_cancer()
    here = np.flatnonzero(table.sites == 0)
    y = table.X[here, 2]
    return Target(make_site(table.X[here][:, 3:8], y, POLICY)), y, float(np.ptp(y))


def labels_by_kinks(_: Path) -> str:
    """Gradients of Huber's loss of an intercept alone: it has a kink at every label plus and minus delta."""
    target, y, spread = _labelled()
    delta = 0.02 * float(y.std())
    objective = ObjectiveSpec(Huber(delta=delta), NO_COLUMNS, columns=np.empty(0, int))
    at = np.linspace(y.min() - 2 * delta, y.max() + 2 * delta, 9_000)
    return _labels_read(target, objective, at, y - delta, spread, "gradient")


def labels_by_terms(_: Path) -> str:
    """`terms` of the squared loss of an intercept: the sum of absolute errors, with a kink at every label."""
    target, y, spread = _labelled()
    objective = ObjectiveSpec(Squared(), NO_COLUMNS, columns=np.empty(0, int))
    return _labels_read(target, objective, np.linspace(y.min(), y.max(), 9_000), y, spread, "terms")


def _labels_read(
    target: Target, objective: ObjectiveSpec, at: np.ndarray, kinks: np.ndarray, spread: float, field: str
) -> str:
    (reply,) = target.ask(Evaluate(objective, at[:, None]))
    if isinstance(reply, Refusal):
        return f"nothing: {reply.reason}"
    g = np.ravel(getattr(reply, field)) * target.rows
    slope = np.diff(g) / np.diff(at)
    read = []
    for k in range(1, len(slope) - 1):  # between two straight pieces: where their lines meet
        before, after = slope[k - 1], slope[k + 1]
        rise = after - before
        if rise > 0.5 and abs(rise - np.rint(rise)) < 1e-6:
            read.append(at[k] + (g[k + 1] - g[k] - after * (at[k + 1] - at[k])) / (before - after))
    near = [np.abs(np.array(read) - kink).min() if read else np.inf for kink in kinks]
    return f"{int((np.array(near) < 1e-5 * spread).sum())} of {len(kinks)} labels, in one message"


def beside_sites_without_rules(folder: Path) -> str:
    """A site with a policy and masks, beside two that enforce none: whatever these tell, the rest is this site."""
    paths = masked_sites(folder, parts(SIZES[:3]))
    for path in paths[1:]:
        path.write_text(path.read_text().replace("[disclosure]\n", "[disclosure]\nenforce = false\n"))
    operator = Operator(paths)
    try:
        operator.enrol()
        operator.totals([rows(Moments())])
    except Refused as refused:
        return f"nothing: {refused}"
    return "it answers"


class LyingAboutMoments(Site):
    """A site whose false moments make an honest program ask for a centre and a scale of 2^70 in three columns."""

    def __init__(self, honest: Site):
        self.rows, self.guard, self.memory = honest.rows, honest.guard, honest.memory

    def reply(self, queries: Sequence[Any]) -> Any:
        lie = 2.0**70 * np.r_[np.zeros(self.rows.width - 3), np.ones(3)]
        honest: Any = super().reply(queries)
        return tuple(
            reply._replace(mean=reply.mean + lie, square=reply.square + 2 * lie**2)
            if isinstance(query, Moments)
            else reply
            for query, reply in zip(queries, honest, strict=True)
        )


def false_moments(_: Path) -> str:
    """The first step of the attack by a lying site: do the honest sites evaluate models on the columns that it scaled?"""
    *honest, liar = wide_parts()
    answered = []

    class Watched(Site):
        def reply(self, queries: Sequence[Any]) -> Any:
            replies = super().reply(queries)
            for query, reply in zip(queries, replies, strict=True):
                scaling = getattr(getattr(query, "objective", None), "scaling", None)
                if scaling is not None and np.abs(scaling.centre).max() > 2.0**60:
                    answered.append(not isinstance(reply, Refusal))
            return replies

    for site in honest:
        site.__class__ = Watched
    with contextlib.suppress(cf.InputError):
        cf.FederatedLasso(alpha=0.01).fit_federation(cf.federation.InProcess([*honest, LyingAboutMoments(liar)]))
    return f"honest sites answer {sum(answered)} of {len(answered)} queries in such columns"


def a_day_of_refusals(folder: Path) -> str:
    """Models that rest on a few rows, one after another: what a site says, and what it remembers after a restart."""
    paths = masked_sites(folder, parts())
    operator = Operator(paths)
    operator.enrol()
    A = np.concatenate(parts().features)
    spec = ObjectiveSpec(Logistic(), FeatureScaling(A.mean(axis=0), A.std(axis=0), True), np.array([0.0, 1.0]))
    bits, last = 0, ""
    for t in np.linspace(-60.0, 60.0, 40):
        x = np.r_[12.0 * np.random.default_rng(0).normal(size=WIDTH), t]
        try:
            operator.totals([rows(Evaluate(spec, x[None]))])
            bits, last = bits + 1, ""
        except Refused as refused:
            bits += str(refused) != last
            last, operator.number = str(refused), service_number(operator)
        except cf.InputError:
            operator.number = service_number(operator)
    numbers = [operator.link.service(name).ledger().numbers for name in NAMES]
    return f"{bits} answers that tell something, of 40 messages; {max(numbers)} numbers in the ledger after a restart"


def isolated_level(_: Path) -> str:
    """Four sites with a yes/no column that 5 % of the rows have: a large coefficient leaves these rows alone their curvature."""
    rng = np.random.default_rng(0)
    A = [
        np.column_stack([rng.normal(size=(150, 4)), np.arange(150) < 15 * (1 + k % 2)]).astype(float) for k in range(4)
    ]
    y = [(a[:, 0] + rng.normal(size=len(a)) > 0).astype(float) for a in A]
    target = SumTarget([make_site(a, b, POLICY, k) for k, (a, b) in enumerate(zip(A, y, strict=True))])
    scaling = target.scaling()
    objective = ObjectiveSpec(Logistic(), scaling, np.array([0.0, 1.0]))
    c, s = scaling.centre[-1], scaling.scale[-1]
    level, table, labels = np.concatenate([a[:, -1] for a in A]) == 1, np.concatenate(A), np.concatenate(y)
    X = np.zeros((2, 6))
    X[:, 4], X[:, 5] = 60.0 * s, -60.0 * (1 - c)  # predictions 0 with the level, -60 without
    X[1, 5] += 1.0
    g = target.gradients(objective, X) * target.rows
    if np.isnan(g).any():
        return f"nothing ({target.main_reason()})"
    mean = unscaled(scaling, ((g[1] - g[0])[:-1] / (g[1] - g[0])[-1])[None])[0, :4]
    error = np.abs(mean - table[level, :4].mean(axis=0)).max()
    return f"sums over the {int(level.sum())} of {len(labels)} rows with the level alone, to {error:.0e}"


ATTACKS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "T1, an honest run": (
        "class counts and shares of a logistic fit, four masked sites",
        class_counts_of_an_honest_run,
    ),
    "T1, asked for": ("`Describe` and `Evaluate` in every weighting", class_counts_asked_for),
    "T1, three sites": ("moments in two weightings, one site helps", third_site_of_three),
    "T2": ("`Holdout` of shares that differ by 2e-4, four masked sites", buckets_by_share),
    "T3, `again`": ("another round to repeat at one site", lambda folder: state_of_one_site(folder, "again")),
    "T3, a round before": (
        "another round at one site, in a message whose sum is noise",
        lambda folder: state_of_one_site(folder, "noise"),
    ),
    "T4": ("squared loss, half-spaces by rounding", half_spaces),
    "T4, constant columns": ("the same with columns that are constant at the site", two_constant_columns),
    "T5, the first step": ("a site's false moments, an honest lasso over four sites", false_moments),
    **{name: attack for name, attack in by_runs.ATTACKS.items() if name.startswith("T6")},
    "T7": ("40 logistic models, some of which are refused", a_day_of_refusals),
    "T8, held-out rows": ("`HeldOut` of 400 logistic models", least_held_out_rows),
    "T8, no columns": ("Huber's loss of an intercept", labels_by_kinks),
    "T8, `terms`": ("`Evaluate.terms` of the squared loss of an intercept", labels_by_terms),
    "T8, no rules": ("two of three masked sites with `enforce = false`", beside_sites_without_rules),
    **{name: attack for name, attack in by_runs.ATTACKS.items() if name.startswith("T9")},
    "F3": ("a coefficient of 60 on a yes/no column, totals of four sites", isolated_level),
}


def run(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ATTACKS[name][1](Path(folder))


def main() -> None:
    print("| attack | how | what it reads |\n|---|---|---|")
    for name, (how, _) in ATTACKS.items():
        print(f"| {name} | {how} | {run(name)} |", flush=True)


if __name__ == "__main__":
    main()

"""What the operator of a network, and a site that helps him, learn of one site: nothing but its enrolment.

Under the default policy and masks, with the real services of the sites, their ledgers and their session files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a network runs on Flower: pip install '.[flower]'")

from attacks.by_operator import Operator, Refused, added, another_query, left_out, rows
from attacks.by_subsets import fedavg_run, update_query
from attacks.measure import Totals, recovered
from network.memory_link import furnish, key_of, logged

import compfed as cf
from compfed.federation import Describe, Evaluate, HeldOut, Moments, exact_sum
from compfed.federation.adding import MessageLayout
from compfed.federation.query import Weighted
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Logistic, Squared
from compfed.network.roster import roster_text
from compfed.splits import Fold, Holdout, SiteFold

TABLE = cf.data.bundled.breast_cancer()
NAMES = ("north", "south", "east", "west")
SIZES, WIDTH = (45, 40, 50, 60), 5


def parts(extra: int = 0) -> cf.data.Sites:
    """Four sites with five columns; the first may have more rows."""
    order, ends = np.random.default_rng(1).permutation(len(TABLE.y)), np.cumsum(SIZES)
    chosen = [order[end - size : end] for end, size in zip(ends, SIZES, strict=True)]
    chosen[0] = np.r_[chosen[0], order[ends[-1] : ends[-1] + extra]]
    # a colour of the numbers of each site, so that the sites are easy to tell apart
    A = [TABLE.X[rows_of, :WIDTH] * (1 + i) for i, rows_of in enumerate(chosen)]
    return cf.data.from_arrays(A, [TABLE.y[rows_of].astype(float) for rows_of in chosen], list(NAMES))


def network(folder: Path, masks: bool = True, sites: cf.data.Sites | None = None, rules: str = "") -> list[Path]:
    return furnish(folder, parts() if sites is None else sites, "", rules, secure_sum=masks)


def scaling() -> FeatureScaling:
    A = np.concatenate(parts().features)
    return FeatureScaling(A.mean(axis=0), A.std(axis=0), intercept=True)


def at_zero(subset: Any = None) -> Evaluate:
    return Evaluate(ObjectiveSpec(Logistic(), scaling(), np.array([0.0, 1.0]), subset), np.zeros((1, WIDTH + 1)))


# --- words ---


def bits_set(words: np.ndarray) -> float:
    return float(np.unpackbits(np.ascontiguousarray(words).view(np.uint8)).mean())


def test_the_words_of_one_site_and_their_differences_between_runs_are_uniform(tmp_path):
    paths, asked = network(tmp_path / "masked"), [rows(at_zero()), rows(Moments())]
    runs = []
    for run in ("one", "two"):  # the same queries twice: the same numbers under other masks
        operator = Operator(paths, run)
        operator.enrol()
        runs.append(operator.words(asked))
    count = 128 * len(runs[0]["north"])
    for name in NAMES:
        for words in (runs[0][name], runs[1][name], exact_sum.subtract(runs[0][name], runs[1][name])):
            assert abs(bits_set(words) - 0.5) < 5 * 0.5 / np.sqrt(count)
    pair = exact_sum.add(runs[0]["north"], runs[0]["south"])  # a site that helps: two of four are still masked
    assert abs(bits_set(pair) - 0.5) < 5 * 0.5 / np.sqrt(count)
    assert (added(runs[0]) == added(runs[1])).all()  # the sums are those numbers
    plain = Operator(network(tmp_path / "plain", masks=False), "one")
    plain.enrol()
    assert abs(bits_set(plain.words(asked)["north"]) - 0.5) > 0.1  # the oracle sees words that are not masked


def test_sites_that_are_asked_different_things_give_noise(tmp_path):
    operator = Operator(network(tmp_path))
    operator.enrol()
    honest, other = [rows(at_zero())], [rows(another_query(at_zero()))]
    words = operator.words({name: other if name == "west" else honest for name in NAMES})
    with pytest.raises(cf.InputError, match="check word"):
        exact_sum.check_total(added(words), len(NAMES))
    assert abs(bits_set(added(words)) - 0.5) < 0.1
    with pytest.raises(Refused, match="came before with other queries"):
        operator.words({"west": honest}, number=operator.number)  # one mask for two replies
    with pytest.raises(Refused, match="cannot be answered: the last message that this site answered is 2"):
        operator.words({"west": honest}, number=operator.number + 5)


# --- two sums that differ in one site ---


REFUSED = {
    "given weights": (Weighted(Moments(), "given", factor=2.0), "a factor that the server chooses"),
    "one site left out": (rows(Moments(subset=SiteFold(2, held_out=False))), "leaving out one site"),
    "one site alone": (rows(Moments(subset=SiteFold(2, held_out=True))), "leaving out one site"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_sum_in_which_one_site_counts_differently_is_refused(name, tmp_path):
    asked, reason = REFUSED[name]
    masked, plain = (Operator(network(tmp_path / str(masks), masks)) for masks in (True, False))
    for operator in (masked, plain):
        operator.enrol()
    with pytest.raises(Refused, match="ends the run here"):
        masked.words([asked])
    assert reason in logged(masked.link.paths["north"])
    assert len(plain.words({"north": [asked]})["north"]) > WIDTH  # without masks it is answered


def test_rounds_of_some_of_the_sites_are_refused(tmp_path):
    operator = Operator(network(tmp_path))
    operator.enrol()
    run = replace(fedavg_run(at_zero().objective, WIDTH + 1, 60, None), everyone=False)
    with pytest.raises(Refused, match="ends the run here"):
        operator.words([Weighted(update_query(run, 0), "rows")])
    assert "rounds of some of the sites" in logged(operator.link.paths["north"])


def test_no_query_over_all_sites_tells_the_column_sums_of_one(tmp_path):
    """Least squares over every sum of columns that the server can name: the sums of one site are not among them.

    The unknowns are the sums of the buckets of every site. A sum that the server gets is the same union of buckets at every
    site, whatever `first`, `seed` and `share` say, so that no combination of them is about one site.
    """
    operator = Operator(network(tmp_path))
    operator.enrol()
    subsets: list[Any] = [None]
    subsets += [
        Holdout(share, seed, True, held) for share in (0.2, 0.5, 0.8) for seed in (0, 1) for held in (True, False)
    ]
    subsets += [
        Fold(k, folds, seed, np.array(first), True, held)
        for folds in (2, 4) for k in range(folds) for seed in (0, 1) for first in ([0] * 4, [0, 1, 0, 0]) for held in (True, False)
    ]  # fmt: skip
    sums, _ = operator.totals([rows(Moments(subset=subset)) for subset in subsets])
    totals = np.array([m.mean[0] for m in sums])
    sites = [operator.services[name].open() for name in NAMES]
    for place, site in enumerate(sites):
        site.rows.index = site.rows.number = place
        site.guard.join(operator.agreement)
    assert {site.rows.buckets for site in sites} == {4, 5}  # of which the run uses four
    buckets = [np.arange(4) == b for site in sites for b in range(4)]
    left = np.array(
        [
            np.concatenate([
                [bool(subset is None or subset.mask(own)[np.flatnonzero(own.buckets_of_rows == b)[0]]) for b in range(own.agreed_buckets)]
                for own in (site.rows for site in sites)
            ])
            for subset in subsets
        ], float,
    )  # fmt: skip
    assert left.shape[1] == len(buckets)
    truth = np.concatenate([
        [site.rows.features[site.rows.buckets_of_rows == b].sum(axis=0) for b in range(4)] for site in sites
    ])  # fmt: skip
    np.testing.assert_allclose(left @ truth, totals, rtol=1e-9)  # the operator knows which buckets a sum is of
    found = np.linalg.lstsq(left, totals, rcond=1e-9)[0]
    start = 0
    for site in sites:
        mine = np.zeros(left.shape[1])
        mine[start : start + 4] = 1.0
        start += 4
        # not in the row space: no combination of the sums is the sum of this site
        rest = mine - np.linalg.lstsq(left.T, mine, rcond=1e-9)[0] @ left
        assert np.linalg.norm(rest) > 0.3 * np.linalg.norm(mine)
        own = site.rows.features.sum(axis=0)
        assert (np.abs(mine @ found - own) > 0.01 * np.abs(own)).all()


def test_the_first_fold_of_a_site_is_its_own_affair(tmp_path):
    """`Fold.first` shifts the folds of one site where there is no policy; two such sums would differ in that site alone."""
    operator = Operator(network(tmp_path))
    operator.enrol()
    folds = [Fold(0, 4, 0, np.array(first), True, held_out=True) for first in ([0, 0, 0, 0], [0, 0, 1, 0])]
    one, other = operator.totals([rows(at_zero(fold)) for fold in folds])[0]
    np.testing.assert_array_equal(one.gradient, other.gradient)
    losses, _ = operator.totals([rows(HeldOut(at_zero().objective, fold, np.zeros((1, WIDTH + 1)))) for fold in folds])
    assert losses[0].weight == losses[1].weight


# --- numbers out of range ---


def test_a_number_out_of_range_leaves_no_sum_of_the_other_sites(tmp_path):
    """If it were left out, the sum would be that of the other sites, and the missing one follows by subtraction."""
    operator = Operator(network(tmp_path, rules="enforce = false"))  # a policy refuses such scales and models
    operator.enrol()
    centre = 10.0
    own = [float(y @ (A[:, 0] - centre)) for A, y in zip(parts().features, parts().labels, strict=True)]
    everything, rows_of_all = -sum(own), sum(SIZES)
    found = left_out(operator, 0, centre)
    counts = [outside for outside, _ in found]
    assert counts[0] == 0
    assert max(counts) > 0
    for outside, total in found:
        if outside == 0:
            assert total * rows_of_all == pytest.approx(everything, rel=1e-9)
        else:
            assert np.isnan(total)  # its words are noise (tests/federation/test_contributions.py)


def test_a_site_with_an_infinite_loss_leaves_no_sum_of_the_others(tmp_path):
    operator = Operator(network(tmp_path, rules="enforce = false"))  # a policy refuses such scales and models
    operator.enrol()
    far = FeatureScaling(np.zeros(1), np.ones(1), intercept=False)
    objective = ObjectiveSpec(Squared(), far, columns=np.array([3]))
    A = parts().features
    largest = np.sort([np.abs(a[:, 3]).max() for a in A])[-2:]
    x = np.sqrt(np.finfo(float).max) / np.sqrt(largest[0] * largest[1])  # one site overflows, and the next one does not
    asked = [Weighted(Evaluate(objective, np.array([[x]])), "rows", lift=1024 + 32)]
    total = added(operator.words(asked))
    layout = list(asked[0].layout(operator.agreement))
    infinite, gradient = layout.index("infinite"), layout.index("gradient")
    assert total[exact_sum.FRAME :][infinite].any()  # one site has an infinite loss
    units = MessageLayout(asked, operator.agreement).units
    seen = exact_sum.decode(total[exact_sum.FRAME :], units)[gradient] / x
    own = [float(np.sum(a[:, 3] ** 2)) for a in A]
    others = sum(own) - max(own)
    assert not abs(seen / others - 1) < 1e-6


# --- two runs ---


def another_roster(paths: list[Path], names: tuple[str, ...]) -> None:
    roster = {path.parent.name: key_of(path).public_key() for path in paths if path.parent.name in names}
    for path in paths:
        (path.parent / "roster.txt").write_text(roster_text({name: roster[name] for name in names}))


@pytest.mark.parametrize("masks", [True, False])
def test_a_run_without_one_site_is_refused_by_the_ledger_of_the_others(masks, tmp_path):
    paths = network(tmp_path, masks)
    before = Operator(paths, "before")
    before.enrol()
    total = before.totals([rows(Moments())])[0][0]
    another_roster(paths, NAMES[:3])
    after = Operator(paths, "after", NAMES[:3])
    with pytest.raises(Refused, match="By subtraction the totals of west become known"):
        after.enrol()
    # the oracle: without the ledgers the totals of the fourth site are the difference
    for path in paths:
        for ledger in (path.parent / "state").rglob("*.ledger"):
            ledger.unlink()
    after = Operator(paths, "later", NAMES[:3])
    after.enrol()
    rest = after.totals([rows(Moments())])[0][0]
    np.testing.assert_allclose(total.mean[0] - rest.mean[0], parts().features[3].sum(axis=0), rtol=1e-9)


@pytest.mark.parametrize("change", ["added", "changed"])
def test_a_row_that_is_added_or_changed_between_two_runs_is_refused_by_the_ledger(change, tmp_path):
    paths = network(tmp_path)
    before = Operator(paths, "before")
    before.enrol()
    total = before.totals([rows(Moments())])[0][0]
    table = paths[0].parent / "rows.csv"
    lines, more = table.read_text().splitlines(), parts(1).features[0][-1]
    line = ",".join(map(repr, [*more.tolist(), 1.0]))
    table.write_text("\n".join([*lines, line] if change == "added" else [*lines[:-1], line]) + "\n")
    same = Operator(paths, "frozen")  # answers from its extract
    same.enrol()
    np.testing.assert_array_equal(same.totals([rows(Moments())])[0][0].mean[0], total.mean[0])
    for extract in (paths[0].parent / "state" / "extracts").rglob("*.csv"):  # what was lost is not answered anew either
        extract.unlink()
    with pytest.raises(Refused, match="differ from those of an earlier run by fewer than its min_rows"):
        Operator(paths, "after").enrol()
    for ledger in (paths[0].parent / "state").rglob("*.ledger"):  # the oracle
        ledger.unlink()
    after = Operator(paths, "later")
    after.enrol()
    difference = after.totals([rows(Moments())])[0][0].mean[0] - total.mean[0]
    row = difference if change == "added" else difference + parts().features[0][-1]
    assert recovered(row[None], more[None], Totals.of(np.concatenate(parts().features))) == 1


# --- enrolments ---


def test_an_enrolment_tells_sizes_and_classes_and_no_value(tmp_path):
    """Known site by site: rows, columns, classes with enough rows, sizes of numbers to 16 bits, and which columns vary.

    A class that a site lists has at least three rows there; a column that `varies` has at least three rows off its most common
    value, and one that does not has fewer. So a site tells whether a class or a second value is missing or rare, and no more.
    """
    sites = parts()
    A, y = [a.copy() for a in sites.features], [labels.copy() for labels in sites.labels]
    for a in A:
        a[:, 4] = 0.0
        a[:7, 4] = 1.0
    A[0][:, 4] = 0.0
    A[0][:2, 4] = 1.0  # a rare value
    y[1][:] = 1.0
    y[1][0] = 0.0  # a rare class
    told = Operator(network(tmp_path, True, cf.data.from_arrays(A, y, list(NAMES)))).enrol()
    assert [np.asarray(e.classes).tolist() for e in told] == [[0.0, 1.0], [1.0], [0.0, 1.0], [0.0, 1.0]]
    assert [bool(e.varies[4]) for e in told] == [False, True, True, True]
    assert [e.rows for e in told] == list(SIZES)
    assert all((e.column_bits % 16 == 0).all() and e.label_bits % 16 == 0 for e in told)
    none = [a.copy() for a in A]
    none[0][:, 4] = 0.0  # no rare value at all: the same enrolment
    again = Operator(network(tmp_path / "none", True, cf.data.from_arrays(none, y, list(NAMES)))).enrol()
    assert again[0].varies.tolist() == told[0].varies.tolist()


def test_class_weights_are_totals(tmp_path):
    operator = Operator(network(tmp_path))
    operator.enrol()
    ((summed,), _) = operator.totals([rows(Describe(classes=True))])
    labels = np.concatenate(list(parts().labels))
    assert summed.class_weights.tolist() == [float((labels == c).sum()) for c in (0.0, 1.0)]

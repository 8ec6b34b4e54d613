"""A federation on this machine: the folders of its sites, and its rehearsal in one process."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

import compfed as cf
from compfed.cli.demo import Loopback, rehearsal
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.network import keys
from compfed.network.site_settings import SiteSettings
from compfed.splits import Holdout


def sites(n: int) -> cf.data.Sites:
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((m, 3)) for m in (60, 80, 47)[:n]]
    return cf.data.from_arrays(A, [(a[:, 0] + 0.5 * rng.standard_normal(len(a)) > 0).astype(float) for a in A])


def settings_of(federation: Loopback) -> list[SiteSettings]:
    return [SiteSettings.read(federation.site_folder(name) / "site.toml") for name in federation.names]


def test_every_site_has_the_roster_and_safe_rules(tmp_path):
    federation = Loopback(tmp_path / "f", sites(3), ("a", "b", "c"))
    for settings in settings_of(federation):
        assert settings.secure_sum
        assert settings.disclosure == DisclosurePolicy(share_by_rule=np.inf, max_share=np.inf)
        lines = {name: keys.public_line(key) for name, key in settings.read_roster().items()}
        assert lines == federation.settings.public_keys
    assert len({path.read_bytes() for path in tmp_path.rglob("roster.txt")}) == 1
    assert len(list(tmp_path.rglob("roster.txt"))) == 4  # the operator's, too


@pytest.mark.parametrize(
    ("n", "given", "masked"), [(2, None, False), (3, None, True), (3, False, False), (2, True, True)]
)
def test_masks_are_on_with_three_sites_unless_said_otherwise(n, given, masked, tmp_path):
    federation = Loopback(tmp_path / "f", sites(n), ("a", "b", "c")[:n], secure_sum=given)
    assert [settings.secure_sum for settings in settings_of(federation)] == [masked] * n


def test_rules_for_all_sites(tmp_path):
    federation = Loopback(tmp_path / "f", sites(2), ("a", "b"), disclosure="min_rows = 20\nallow_minibatches = true")
    for settings in settings_of(federation):
        assert settings.disclosure == DisclosurePolicy(
            min_rows=20, allow_minibatches=True, share_by_rule=np.inf, max_share=np.inf
        )
        assert settings.limits.max_models == 10_000  # the table after it is whole


def secret_of(folder) -> bytes:
    number = keys.read_identity(folder / "node.key").private_numbers().private_value
    return hmac.new(number.to_bytes(48, "big"), b"compfed/buckets/1", hashlib.sha256).digest()


def test_a_rehearsal_deals_the_rows_with_the_secrets_of_the_sites(tmp_path):
    federation = Loopback(tmp_path / "f", sites(3), ("a", "b", "c"))
    before, again = rehearsal(federation), rehearsal(federation)
    assert [site.memory.secret for site in before.sites] == [secret_of(federation.site_folder(name)) for name in "abc"]
    assert len({site.memory.secret for site in before.sites}) == 3
    assert [(site.name, site.rows.index, site.rows.number) for site in before.sites] == [
        ("a", 0, 0),
        ("b", 1, 1),
        ("c", 2, 2),
    ]
    held_out = Holdout(0.3, seed=1, by_class=True, held_out=True)
    for one, other in zip(before.sites, again.sites, strict=True):
        np.testing.assert_array_equal(held_out.mask(one.rows), held_out.mask(other.rows))
        assert one.rows.buckets_of_rows is not None
        assert np.bincount(one.rows.buckets_of_rows).min() >= 10
    other = Loopback(tmp_path / "g", sites(3), ("a", "b", "c"))  # with other keys
    assert any(
        (one.rows.buckets_of_rows != two.rows.buckets_of_rows).any()
        for one, two in zip(before.sites, rehearsal(other).sites, strict=True)
    )
    assert before.exact


def test_a_rehearsal_fits(tmp_path):
    federation = Loopback(tmp_path / "f", sites(3), ("a", "b", "c"))
    model = cf.FederatedLogisticRegression(alpha=0.01, tol=1e-10).fit_federation(rehearsal(federation))
    table = sites(3)
    site = np.repeat([0, 1, 2], table.sizes)
    pooled = cf.FederatedLogisticRegression(alpha=0.01, tol=1e-10)
    pooled.fit(np.vstack(table.features), np.concatenate(table.labels), sites=site)
    np.testing.assert_allclose(model.coef_, pooled.coef_, atol=1e-7)

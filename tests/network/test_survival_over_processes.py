"""A Cox model with strata through the services of the sites and over processes, with masks and the default disclosure policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import remote
from network.processes import Processes

import compfed as cf

SCHEMA = """[columns.age]
[columns.crp]
[columns.sex]
levels = ["female", "male"]
[label]
column = ["months", "died"]
[rows]
stratum = "ward"
"""


def frame(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(rng.standard_normal((rows, 2)).round(4), columns=["age", "crp"])
    found["sex"], found["ward"] = rng.choice(["female", "male"], rows), rng.choice(["icu", "general"], rows)
    risk = 0.7 * found["age"] + 0.4 * (found["sex"] == "male") + 0.5 * (found["ward"] == "icu")
    time, censored = 12 * rng.exponential(np.exp(-risk)), np.minimum(20 * rng.exponential(size=rows), 24)
    found["months"] = np.ceil(np.minimum(time, censored))
    found["died"] = (time <= censored).astype(int)
    return found


FRAMES = {name: frame(k, rows) for k, (name, rows) in enumerate({"north": 160, "south": 130, "east": 140}.items())}
ROWS = pd.concat([table.assign(site=name) for name, table in FRAMES.items()], ignore_index=True)
CV: dict[str, Any] = {"n_alphas": 5, "eps": 0.1, "cv": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Processes:
    """The folders of the sites; nothing runs yet."""
    home = tmp_path_factory.mktemp("survival") / "clinics"
    federation = Processes(home, {name: table.to_csv(index=False).encode() for name, table in FRAMES.items()}, "")
    federation.adopt(SCHEMA)
    return federation


def in_memory(made: Processes) -> Any:
    return remote([made.site_folder(name) / "site.toml" for name in made.names])[0]


def test_a_fit_with_strata_through_the_services_of_the_sites(made):
    with in_memory(made) as federation:
        assert all(e.secure_sum for e in federation.enrolments)
        model = cf.FederatedCox(times=[6.0, 12.0, 18.0]).fit_federation(federation)
        curves = cf.kaplan_meier(federation, times=[6.0, 12.0, 18.0], by="sex")
        assert federation.problems == []
    here = cf.FederatedCox().fit(ROWS, ("months", "died"), sites="site", schema=cf.Schema.from_toml(SCHEMA))
    np.testing.assert_allclose(model.coef_, here.coef_, rtol=1e-8)
    assert model.certificate_.holds
    assert model.n_rounds_ <= 15
    assert model.predict_survival_function(ROWS).shape == (len(ROWS), 3)
    assert curves.groups == ("sex=female", "sex=male")


def test_events_in_words_are_those_of_the_schema(made, tmp_path):
    tables = {name: table.assign(died=np.where(table["died"] == 1, "dead", "alive")) for name, table in FRAMES.items()}
    worded = Processes(tmp_path / "clinics", {name: t.to_csv(index=False).encode() for name, t in tables.items()}, "")
    worded.adopt(SCHEMA.replace("[rows]", 'events = ["alive", "dead"]\n[rows]'))
    found = []
    for federation in (made, worded):
        with in_memory(federation) as sites:
            table_one = cf.describe(sites)
            found.append((cf.FederatedCox().fit_federation(sites).coef_, str(table_one)))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    assert found[1][1] == found[0][1]


@pytest.mark.filterwarnings("ignore::compfed.errors.EdgeOfGridWarning")
@pytest.mark.thorough
def test_a_cross_validation_over_processes_has_the_bits_of_one_process(made):
    with in_memory(made) as federation:
        here = cf.FederatedCoxCV(**CV).fit_federation(federation)
    with made:
        made.start()
        with cf.network.connect(made.home, progress=False) as federation:
            there = cf.FederatedCoxCV(**CV).fit_federation(federation)
    np.testing.assert_array_equal(there.coef_, here.coef_)
    np.testing.assert_array_equal(there.cv_loss_, here.cv_loss_)
    assert there.n_rounds_ <= 40

"""Around a method of one's own: its class, its fields, its claims, and the registry. Every refusal names the way out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import pytest
from jax import Array
from problems import quadratics

import compfed as cf
from compfed.algorithms import ALGORITHMS, Algorithm, find, positive, record, register
from compfed.studies.method_table import entries

PROBLEM = quadratics(0)
HERE = Path(__file__).name


class Update(NamedTuple):
    gradient: Array


@record
class Mine(Algorithm[Array, None, Array, Update]):
    """Proximal gradient, of which nobody says anything: no claims, no rule for its steps."""

    eta: float = positive(default=0.05)

    def init(self, x0):
        return x0, None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        return Update(gradient=f.grad(d, key)), c, d

    def server_update(self, g, s, mean, weight):
        return g.prox(s - self.eta * mean.gradient, self.eta)

    def solution(self, g, s):
        return s


def test_a_missing_stage_is_named():
    @record
    class NoServer(Algorithm[Array, None, Array, Update]):
        def init(self, x0):
            return x0, None

        def broadcast(self, g, s):
            return s

        def client_update(self, f, g, d, c, key):
            return Update(gradient=d), c, d

    with pytest.raises(
        cf.InputError, match=r"NoServer defines no `server_update`: server_update\(self, g, s, mean, weight\) returns"
    ):
        cf.simulate(PROBLEM, NoServer(), 1)


def test_a_stage_with_other_arguments_is_named_with_its_line():
    @record
    class Short(Mine):
        def broadcast(self, s):  # pyright: ignore[reportIncompatibleMethodOverride]  # the mistake
            return s

    with pytest.raises(
        cf.InputError, match=rf"Short\.broadcast \(.*{HERE}:\d+\): TypeError.*broadcast\(self, g, s\) returns"
    ):
        cf.simulate(PROBLEM, Short(), 1)


def test_every_exchange_is_checked():
    class First:
        def broadcast(self, g, s):
            return s

        def client_update(self, f, g, d, c, key):
            return Update(gradient=jnp.sum(d)), c, d

        def server_update(self, g, s, mean, weight):
            return s

    @record
    class Twice(Mine):
        @property
        def exchanges(self):
            return First(), self

    with pytest.raises(cf.InputError, match=r"Twice\.client_update: u\.gradient is a single number"):
        cf.simulate(PROBLEM, Twice(), 1)


@pytest.mark.parametrize("engine", [cf.simulate, cf.simulation.run_plain], ids=["simulate", "reference"])
def test_a_class_that_is_no_record_is_refused(engine):
    class Bare(Mine):
        pass

    for algorithm in (Bare(), Bare(eta=0.1)):
        with pytest.raises(cf.InputError, match=r"Bare is not a record.*Put @record above the class"):
            engine(PROBLEM, algorithm, 1)


def test_the_class_instead_of_an_instance():
    with pytest.raises(cf.InputError, match=r"must be an instance such as .*; got Mine \(the class\)"):
        cf.simulate(PROBLEM, Mine, 1)  # pyright: ignore[reportArgumentType]  # the mistake


@pytest.mark.parametrize("default", ["", " = 0.1"])
def test_a_field_without_a_checker_is_refused_when_the_class_is_made(default):
    source = f"@record\nclass Bare(Algorithm):\n    eta: float{default}\n"
    with pytest.raises(cf.InputError, match=r"Bare\.eta does not say what it accepts.*positive\("):
        exec(source, {"record": record, "Algorithm": Algorithm})


def test_an_annotated_claim_is_refused_and_told_how():
    with pytest.raises(cf.InputError, match=r"leave the annotation out: exact = \.\.\."):

        @record
        class Claims(Algorithm):
            exact: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]  # the mistake


def test_no_rule_for_the_steps():
    with pytest.raises(cf.InputError, match=r"no rule for the step sizes of Mine.*from_bounds\(cls, bounds, scale\)"):
        cf.algorithms.default_steps(Mine, PROBLEM)
    with pytest.raises(cf.InputError, match="no rule for the step sizes of Mine"):
        cf.compare_methods(PROBLEM, [Mine], rounds=1)


def test_claims_that_nobody_made_are_unknown_in_the_table():
    (row,) = entries([Mine])
    cells = dict(zip(["method", "paper", "file", "composite"], row.cells(), strict=False))
    assert cells == {"method": "Mine", "paper": "unknown", "file": HERE, "composite": "unknown"}
    assert row.cells()[4:] == ["unknown", "unknown", "unknown", "no", "unknown", row.verified_by]
    assert "not by us" in row.verified_by


# --- the registry ---


def test_registering_twice_the_same_is_harmless_and_another_is_refused():
    register(Mine)
    assert register(Mine) is Mine
    assert find("mine") is Mine
    other = type("Mine", (Algorithm,), {"__module__": "elsewhere"})
    with pytest.raises(cf.InputError, match=r"already is a method 'Mine', in .*; give the class in elsewhere another"):
        register(other)
    ours = type("FedAvg", (Algorithm,), {"__module__": "elsewhere"})
    with pytest.raises(cf.InputError, match=r"already is a method 'FedAvg', in compfed\.algorithms\.fedavg"):
        register(ours)
    assert "Mine" not in ALGORITHMS  # the table of the README has ours only


@pytest.mark.parametrize("wrong", [Mine(), "Mine", int])
def test_only_classes_of_algorithms_can_be_registered(wrong):
    with pytest.raises(
        cf.InputError, match=r"register takes a class that inherits from compfed\.algorithms\.Algorithm"
    ):
        register(wrong)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no_such_module:Mine", r"no module 'no_such_module'.*PYTHONPATH"),
        ("my_method.py:LocalProx", r"not of a file: 'my_method:LocalProx'"),
        ("compfed.algorithms.fedavg:FedAvgg", r"has no algorithm 'FedAvgg'; its algorithms: FedAvg"),
        ("compfed.errors:InputError", r"has no algorithm 'InputError'; its algorithms: none"),
    ],
)
def test_an_address_that_leads_nowhere(address, message):
    with pytest.raises(cf.InputError, match=message):
        find(address)


def test_a_module_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "fails_inside.py").write_text("import no_such_dependency\n")
    (tmp_path / "divides.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(cf.InputError, match=r"no module 'no_such_dependency' \(while importing fails_inside\)"):
        find("fails_inside:Mine")
    with pytest.raises(cf.InputError, match=r"importing divides failed with ZeroDivisionError"):
        find("divides:Mine")

"""The table of algorithms is computed; what classes say is what their files say. The examples of the pages: tests/docs."""

from __future__ import annotations

import ast
import inspect
import json

import marks
import numpy as np
import pytest
from places import ROOT
from problems import quadratics

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.solvers.second_order import SOLVERS
from compfed.studies.method_table import entries, references, table_rows


def test_verified_json_is_what_the_marks_say():
    assert json.loads(marks.TARGET.read_text()) == marks.collect(), "run: python tests/marks.py"


def test_every_row_of_the_table_of_identities_is_a_test():
    assert marks.rows() == set(range(1, 42))


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_cites_the_paper_of_its_docstring(name):
    citation = SOLVERS[name].citation
    document = " ".join((inspect.getmodule(SOLVERS[name]).__doc__ or "").split())  # pyright: ignore[reportOptionalMemberAccess]
    assert all(part in document for part in (citation.authors, citation.title, citation.where, str(citation.year)))
    assert str(citation).startswith("ours, after ") == ("Reference: ours" in document)
    assert name in {row[0] for row in references()}


def test_costs_in_the_table_are_those_of_the_papers():
    """Vectors up and down and gradients per round with tau = 5, as the papers state them."""
    known = {
        "DecoupledProx": (1, 1, 5), "FedMid": (1, 1, 5), "FedDA": (1, 1, 5), "FastFedDA": (2, 2, 5), "FISTA": (1, 1, 1),
        "Scaffold": (2, 2, 5), "Mime": (2, 3, 11), "MimeLite": (2, 2, 6), "FedDR": (1, 1, 5), "FedADMM": (1, 1, 5),
        "CoupledControlVariates": (2, 2, 5), "Scaffnew": (1, 1, 5), "AcceleratedDecoupledProx": (1, 1, 5),
        "VarianceReducedDecoupledProx": (1, 1, 11), "DANE": (2, 2, 6), "SDANE": (3, 2, 7), "FedDyn": (1, 1, 5),
    }  # fmt: skip
    costs = {e.name: e.cost for e in entries() if e.cost is not None}
    found = {name: (c.vectors_up, c.vectors_down, c.gradients) for name, c in costs.items()}
    assert {name: found[name] for name in known} == known


def code_lines(source: str) -> int:
    """Lines that are neither blank, comment nor docstring."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            skipped |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for i, line in lines if i not in skipped and line.strip() and not line.strip().startswith("#"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_inheritance_between_algorithms_and_a_documented_source(name):
    cls = ALGORITHMS[name]
    assert [base for base in cls.__mro__[1:] if base in ALGORITHMS.values()] == []
    document = inspect.getmodule(cls).__doc__ or ""  # pyright: ignore[reportOptionalMemberAccess]  # a class has one
    assert "Deviations:" in document
    assert "Reference:" in document


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_reference_in_the_class_is_that_of_the_docstring(name):
    cls = ALGORITHMS[name]
    assert cls.composite is not None
    assert cls.exact is not None
    reference = cls.citation
    assert reference is not None
    document = " ".join((inspect.getmodule(cls).__doc__ or "").split())  # pyright: ignore[reportOptionalMemberAccess]
    credited = document[document.index("Reference:") :]
    assert reference.authors.split(",")[0] in credited
    assert ("Reconstruction:" in document) == reference.reconstructed
    assert str(reference.year) in credited
    # the class says it once: `help` has it from there
    text = str(reference)
    assert f"References\n----------\n{text[0].upper()}{text[1:]}.\n" in (cls.__doc__ or "")
    assert reference.title in credited
    # nothing of a citation is missing, and none of it is lost on the way to a reader
    assert all(part and part in str(reference) for part in (reference.authors, reference.title, reference.where))
    assert str(reference).endswith(str(reference.year))
    assert reference.short.endswith(f"{reference.authors.split(',')[0]} {reference.year}")
    if reference.ours:  # and what is ours says so first, in the docstring too
        assert reference.short.startswith("ours, after ")
        assert credited.startswith("Reference: ours")


def test_what_is_proved_names_its_theorem_and_its_assumptions():
    """Of sampling the table says *proved* only where a theorem covers how we run it; everything else is observed."""
    proved = {name: cls for name, cls in ALGORITHMS.items() if cls.sampling == "proved"}
    assert set(proved) == {"FedAvg", "Scaffold"}
    for name, cls in ALGORITHMS.items():
        assert (cls.proof != "") == (cls.sampling == "proved"), name
        assert (cls.schemes != ()) == (cls.sampling != "no"), name
        assert (cls.exact_sampled is not None) == bool(cls.sampling != "no" and cls.exact), name
    for cls in proved.values():
        document = " ".join((inspect.getmodule(cls).__doc__ or "").split())  # pyright: ignore[reportOptionalMemberAccess]
        assert cls.proof.split(", ")[1] in document
        assert "equal weights" in document


@pytest.mark.parametrize("entry", entries(ALGORITHMS.values()), ids=lambda entry: entry.name)
def test_every_claim_in_the_table_says_its_evidence(entry):
    """Proved with paper, theorem and a condition on the steps; otherwise observed, of a method of ours as our claim."""
    cls, claim = entry.method, entry.limit.split("; ")[0]
    assert cls.citation is not None
    if "proved" in claim:
        assert "eta <= " in claim
        assert f"{cls.citation.authors.split(',')[0]} {cls.citation.year}, " in claim
    else:
        assert claim.endswith("ours, observed" if cls.citation.ours else ", observed")
    assert claim.startswith(("yes", "as 1/t", "all clients only") if cls.exact else "no")
    if cls.citation.reconstructed:
        assert cls.citation.short.startswith("reconstruction of ")
        assert "ours" not in entry.cells()[1]
    if cls.sampling == "proved":
        assert entry.sampling.startswith("proved (")
        assert ", else observed" in entry.sampling


def test_two_names_of_one_method_share_a_row():
    """What the row says, run: FedADMM is FedDR with these parameters, some of the clients and unequal weights included."""
    rows = {row[0].split(";")[0]: row for row in table_rows(entries(ALGORITHMS.values()))}
    assert "FedADMM" not in rows
    assert rows["FedDR"][0] == "FedDR; FedADMM is the same with alpha = 1, lam = 1/rho"
    assert rows["FedDR"][1] == "Tran-Dinh 2021; reconstruction of Wang 2022"
    assert len(rows) == len(ALGORITHMS) - 1
    assert [row[0] for row in table_rows(entries([ALGORITHMS["FedADMM"]]))] == ["FedADMM"]
    problem = quadratics(0)
    one, other = (
        cf.simulate(problem, algorithm, 40, participants=3)
        for algorithm in (cf.algorithms.FedDR(eta=0.1, lam=0.5), cf.algorithms.FedADMM(eta=0.1, rho=2.0))
    )
    np.testing.assert_allclose(other.x, one.x, rtol=1e-9, atol=1e-12)


def test_default_steps_of_scaffold_are_so_much_longer_than_its_theorem_allows():
    problem = quadratics(0, g=cf.regularisers.Zero())
    theorem = {tau: 1.0 / (81 * problem.client_lipschitz.max() * tau) for tau in (1, 2, 4, 5, 20)}
    ratios = [cf.algorithms.default_steps("Scaffold", problem, tau).eta / theorem[tau] for tau in theorem]  # pyright: ignore[reportAttributeAccessIssue]  # it has steps
    assert max(ratios) == pytest.approx(324)
    assert "up to 324 times longer" in ALGORITHMS["Scaffold"].setting


def test_the_skeleton_runs_in_both_engines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from my_method import LocalProx  # pyright: ignore[reportMissingImports]  # on the path only here

    source = (ROOT / "examples" / "my_method.py").read_text()
    assert code_lines(source) <= 40
    sites = cf.data.synthetic(clients=4, samples=15, features=5)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    monkeypatch.setattr(LocalProx, "sampling", "observed")
    for batch, k in ((None, None), (4, 2)):
        a = cf.simulate(problem, LocalProx(eta=1.0, tau=2), 20, batch_size=batch, participants=k)
        b = cf.simulation.run_plain(problem, LocalProx(eta=1.0, tau=2), 20, batch_size=batch, participants=k)
        np.testing.assert_allclose(a.x, b.x, rtol=1e-10)
    # with one client and no relaxation it is proximal gradient, which is exact
    alone = cf.Problem(problem.loss, problem.regulariser, cf.data.from_arrays(sites.features[:1], sites.labels[:1]))
    trace = cf.simulate(alone, LocalProx(eta=2.0, tau=5), 300, x_star=cf.solve_pooled(alone), record_every=300)
    assert trace["optimality"][-1] < 1e-10

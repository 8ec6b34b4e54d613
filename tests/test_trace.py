"""Trace: what is saved comes back to the last bit, and a run goes on from it as if it had never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from problems import logistic

import compfed as cf
from compfed.trace import RunState

ENGINES = {"simulate": cf.simulate, "reference": cf.simulation.run_plain}
ALGORITHM = cf.algorithms.DecoupledProx(eta=0.5, tau=3)


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    return logistic()


@pytest.fixture(scope="module")
def x_star(problem) -> cf.PooledSolution:
    return cf.solve_pooled(problem)


@pytest.fixture(scope="module")
def trace(problem, x_star) -> cf.Trace:
    return cf.simulate(problem, ALGORITHM, 6, batch_size=5, participants=3, seed=4, x_star=x_star)


def assert_same_arrays(a: dict[Any, np.ndarray], b: dict[Any, np.ndarray]) -> None:
    """Equal to the last bit, names, order and dtypes included."""
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# Worked out for several models at once, in blocks whose size depends on the clock: the last bit may differ.
IN_BLOCKS = ("objective", "gradient_mapping")


def assert_same_run(a: cf.Trace, b: cf.Trace) -> None:
    """The same rounds: all exact, but for the time they took and the rounding of what is measured in blocks."""
    exact = [{k: v for k, v in t.columns.items() if k not in (*IN_BLOCKS, "seconds")} for t in (a, b)]
    assert_same_arrays(*exact)
    for name in IN_BLOCKS:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-10, atol=1e-14, err_msg=name)
    np.testing.assert_array_equal(a.x, b.x)
    assert_same_state(a.state, b.state)


def assert_same_state(a: RunState | None, b: RunState | None) -> None:
    assert a is not None
    assert b is not None
    assert a.rounds == b.rounds
    for mine, theirs in ((a.server, b.server), (a.clients, b.clients)):
        assert len(mine) == len(theirs)
        assert_same_arrays(dict(enumerate(mine)), dict(enumerate(theirs)))


# --- files ---


def test_save_and_load_give_the_same_trace(trace, tmp_path):
    back = cf.Trace.load(trace.save(tmp_path / "run.npz"))
    assert_same_arrays(trace.columns, back.columns)
    assert_same_arrays({"x": trace.x}, {"x": back.x})
    assert_same_state(trace.state, back.state)
    assert back.provenance == trace.provenance


def test_every_bit_survives(tmp_path):
    """Numbers that text formats lose: subnormals, infinities, NaN, minus zero, float32."""
    odd = np.array([5e-324, -0.0, np.inf, -np.inf, np.nan, 0.1 + 0.2, np.nextafter(1, 2)])
    made = cf.Trace(
        {"round": np.arange(7), "objective": odd},
        odd.astype(np.float32),
        {"eta": 0.1 + 0.2, "limit": float("inf"), "text": "β ≤ 1", "none": None, "flag": True},
        RunState(
            3, [odd[:2], np.array(7, np.int32)], [np.zeros((2, 0)), *(np.full((2, 2), float(i)) for i in range(11))]
        ),
    )
    back = cf.Trace.load(made.save(tmp_path / "odd"))
    assert back.columns["objective"].tobytes() == odd.tobytes()
    assert back.x.tobytes() == made.x.tobytes()
    assert back.x.dtype == np.float32
    assert back.provenance == made.provenance
    assert_same_state(made.state, back.state)  # more than ten leaves: they must not come back sorted as words


def test_a_trace_without_state(tmp_path):
    made = cf.Trace({"round": np.arange(2)}, np.zeros(3))
    back = cf.Trace.load(made.save(tmp_path / "bare"))
    assert back.state is None
    assert back.provenance == {}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("a", "a.npz"),
        ("a.npz", "a.npz"),
        ("eta=0.5", "eta=0.5.npz"),
        ("deep/er/b", "deep/er/b.npz"),
        ("c.txt", "c.txt.npz"),
    ],
)
def test_suffix_and_folders(trace, tmp_path, given, written):
    target = trace.save(tmp_path / given)
    assert target == tmp_path / written
    assert target.exists()
    for path in (tmp_path / given, str(tmp_path / written)):
        np.testing.assert_array_equal(cf.Trace.load(path).x, trace.x)


def test_provenance_with_numpy_values_can_be_saved(tmp_path):
    seed: Any = np.int64(0)
    sites = cf.data.synthetic(clients=5, samples=20, features=8, seed=seed)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(np.full(8, 2e-3)), sites)
    over: Any = {"eta": np.array([0.5, 0.25], np.float32), "seed": np.arange(1, 3)}
    members = cf.grid(problem, ALGORITHM, 2, over)
    back = cf.Trace.load(members[1].save(tmp_path / "member"))
    assert back.provenance["grid"] == {"eta": 0.5, "seed": 2}
    assert back.provenance["problem"]["source"]["seed"] == 0
    assert back.provenance["problem"]["regulariser"]["lam"] == [2e-3] * 8
    cf.Trace({"round": np.arange(1)}, np.zeros(1), {"file": Path("data.csv")}).save(tmp_path / "path")
    assert cf.Trace.load(tmp_path / "path").provenance == {"file": "data.csv"}


def test_load_says_what_is_wrong(tmp_path):
    with pytest.raises(cf.InputError, match=r"there is no trace at .*nowhere\.npz"):
        cf.Trace.load(tmp_path / "nowhere")
    np.savez(tmp_path / "other.npz", x=np.zeros(2))
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "empty.npz").write_text("")
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(2))
    for name in ("other", "text", "empty", "array"):
        with pytest.raises(cf.InputError, match=rf"{name}\.npz is not a trace"):
            cf.Trace.load(tmp_path / name)


def rewritten(path: Path, target: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]) -> Path:
    """A saved trace with its head and arrays changed."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    head = json.loads(str(arrays.pop("head")))
    text = change(head, arrays)
    arrays["head"] = np.array(text if isinstance(text, str) else json.dumps(head))
    np.savez(target, allow_pickle=False, **arrays)
    return target


DAMAGE: dict[str, tuple[Callable[[dict[str, Any], dict[str, np.ndarray]], Any], str]] = {
    "a head that is no JSON": (lambda head, _: '{"columns": [', r"Expecting value"),
    "a head that is no table": (lambda head, _: "[1, 2]", r"head is not a table"),
    "no provenance": (lambda head, _: head.pop("provenance") and None, r"'provenance' is missing"),
    "a column that is not there": (lambda _, a: a.pop("column/drift"), r"'column/drift' is missing"),
    "columns of different lengths": (
        lambda _, a: a.update({"column/drift": np.zeros(2)}), r"columns are of different lengths",
    ),
    "no rounds": (lambda head, _: head["columns"].remove("round"), r"'round' is missing"),
    "less than no rounds": (lambda head, _: head.update(rounds=-1), r"it says that -1 rounds were done"),
    "no model": (lambda _, a: a.pop("x"), r"'x' is missing"),
    "no state of the clients": (lambda _, a: a.pop("clients/002"), r"'clients/002' is missing"),
    "clients of different numbers": (
        lambda _, a: a.update({"clients/001": a["clients/001"][:3]}), r"of different numbers of clients",
    ),
    "sites without weights": (lambda _, a: a.pop("members/weights"), r"'members/weights' is missing"),
    "sites of different numbers": (lambda _, a: a.update({"members/rows": np.ones(2)}), r"sites are of different"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_trace_is_one_clear_error(trace, tmp_path, damage):
    change, message = DAMAGE[damage]
    path = rewritten(trace.save(tmp_path / "whole"), tmp_path / "bad.npz", change)
    with pytest.raises(cf.InputError, match=rf"bad\.npz is a damaged trace .*{message}"):
        cf.Trace.load(path)


def test_every_cut_and_every_changed_byte_is_noticed_or_harmless(trace, tmp_path):
    raw, bad, rng = trace.save(tmp_path / "whole").read_bytes(), tmp_path / "bad.npz", np.random.default_rng(0)
    cuts = [raw[: int(end)] for end in np.linspace(0, len(raw) - 1, 60)]
    for kind in range(200):
        changed = bytearray(raw)
        changed[rng.integers(len(raw))] ^= 1 << (kind % 8)
        cuts.append(bytes(changed))
    refused = 0
    for content in cuts:
        bad.write_bytes(content)
        try:
            back = cf.Trace.load(bad)
        except cf.InputError:
            refused += 1
        else:  # a bit of the archive's own book-keeping
            assert_same_arrays(trace.columns, back.columns)
            assert_same_state(trace.state, back.state)
    assert refused > 200


def test_what_is_wrong_is_told_shortly(trace, tmp_path):
    """A changed length of a name in a zip file makes its reader quote the rest of the file."""
    content = bytearray(trace.save(tmp_path / "whole").read_bytes())
    content[27] = 0x20  # the name of the first part is 8 KB long
    (tmp_path / "bad.npz").write_bytes(bytes(content))
    with pytest.raises(cf.InputError, match="is a damaged trace") as caught:
        cf.Trace.load(tmp_path / "bad.npz")
    assert len(str(caught.value)) < 500


def test_a_folder_in_the_place_of_a_trace(tmp_path):
    (tmp_path / "run.npz").mkdir()
    with pytest.raises(cf.InputError, match=r"run\.npz cannot be read: Is a directory"):
        cf.Trace.load(tmp_path / "run")


def test_a_trace_knows_its_sites_also_from_a_file(problem, trace, tmp_path):
    for known in (trace, cf.Trace.load(trace.save(tmp_path / "run"))):
        assert known.state is not None
        members = known.state.members
        assert members is not None
        assert members.names == problem.sites.names
        assert members.rows.tolist() == [20] * 5
        np.testing.assert_array_equal(members.weights, problem.weights)
        # one sum over the rows of a site, and no row: w = cos(1), cos(2), ... for the columns, then the label
        w = np.cos(np.arange(1, 10))
        by_hand = [
            (A @ w[:8] + y * w[8]).mean() for A, y in zip(problem.sites.features, problem.sites.labels, strict=True)
        ]
        assert members.fingerprints is not None
        np.testing.assert_allclose(members.fingerprints, by_hand, rtol=0, atol=1e-12)


# --- looking at it ---


def test_columns(trace):
    np.testing.assert_array_equal(trace["round"], np.arange(7))
    assert len(trace) == 7
    assert "optimality" in trace
    assert "nonsense" not in trace
    assert list(trace) == list(trace.columns)
    assert all(len(values) == 7 for values in trace.columns.values())


def test_a_missing_column_is_named_with_those_there_are(problem, trace):
    with pytest.raises(cf.InputError, match=r"no column 'loss'; it has round, optimality, objective"):
        trace["loss"]
    without = cf.simulate(problem, ALGORITHM, 1)
    with pytest.raises(cf.InputError, match=r"no column 'optimality'.*x_star=x_star"):
        without["optimality"]


def test_first():
    made = cf.Trace({"round": np.array([0, 10, 20, 30]), "optimality": np.array([1.0, 1e-3, 2e-3, 1e-6])}, np.zeros(1))
    assert made.first("optimality", 1.0) == 0
    assert made.first("optimality", 1e-3) == 10  # at most, not below; and the first, not the last
    assert made.first("optimality", 1e-4) == 30
    assert made.first("optimality", 1e-9) is None


def test_to_pandas(trace):
    frame = trace.to_pandas()
    assert frame.index.name == "round"
    assert list(frame.columns) == [c for c in trace if c != "round"]
    np.testing.assert_array_equal(frame.index, trace["round"])
    np.testing.assert_array_equal(frame["objective"], trace["objective"])


def test_rows_are_measurements_of_the_models(problem, x_star, trace):
    np.testing.assert_allclose(trace["objective"][-1], problem.objective(trace.x), rtol=1e-14)
    mapping = np.linalg.norm(problem.gradient_mapping(trace.x))
    np.testing.assert_allclose(trace["gradient_mapping"][-1], mapping, rtol=1e-9)
    error = np.linalg.norm(trace.x - x_star.x) / np.linalg.norm(x_star.x)
    np.testing.assert_allclose(trace["optimality"][-1], error, rtol=1e-13)
    assert trace["nonzeros"][-1] == np.count_nonzero(trace.x)
    np.testing.assert_allclose(trace["objective"][0], problem.objective(np.zeros(8)), rtol=1e-14)
    np.testing.assert_allclose(trace["optimality"][0], 1.0, rtol=1e-14)


def test_provenance(problem, trace):
    cached = trace.provenance
    assert cached == json.loads(json.dumps(cached)), "plain data only"
    assert set(cached["versions"]) >= {"compfed", "jax", "jaxlib", "numpy", "python"}
    assert cached["versions"]["numpy"] == np.__version__
    assert cached["versions"]["jax"] == jax.__version__
    assert cached["dtype"] == "float64"
    assert cached["device"] == jax.devices()[0].device_kind
    assert (cached["engine"], cached["seed"], cached["rounds"]) == ("simulate", 4, 6)
    assert (cached["batch_size"], cached["participants"], cached["record_every"]) == (5, 3, 1)
    algorithm = {
        "name": "DecoupledProx",
        "eta": 0.5,
        "eta_g": 1.0,
        "tau": 3,
        "upload": "model",
    }
    assert cached["algorithm"] == algorithm
    assert cached["problem"] == problem.describe()
    assert cached["problem"]["source"]["name"] == "synthetic"


# --- going on ---

WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, sampled": {"participants": 3},
    "mini-batch": {"batch_size": 5},
    "mini-batch, sampled": {"batch_size": 5, "participants": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_resume_equals_an_uninterrupted_run(problem, x_star, tmp_path, engine, way):
    run, settings = ENGINES[engine], {**WAYS[way], "seed": 4, "x_star": x_star}
    whole = run(problem, ALGORITHM, 6, **settings)
    first = run(problem, ALGORITHM, 2, **settings)
    saved = cf.Trace.load(first.save(tmp_path / "half"))
    resumed = run(problem, ALGORITHM, 4, resume=saved, **settings)
    assert_same_run(whole, resumed)
    assert resumed.provenance["rounds"] == 6
    assert (np.diff(resumed["seconds"]) >= 0).all()
    assert not np.array_equal(first.x, whole.x)


def test_resume_in_the_other_engine(problem):
    settings: dict[str, Any] = {"batch_size": 5, "participants": 3, "seed": 4}
    whole = cf.simulate(problem, ALGORITHM, 6, **settings)
    half = cf.simulation.run_plain(problem, ALGORITHM, 2, **settings)
    resumed = cf.simulate(problem, ALGORITHM, 4, resume=half, **settings)
    np.testing.assert_allclose(resumed.x, whole.x, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(resumed["round"], whole["round"])


def test_resume_for_no_rounds_changes_nothing(problem, trace, x_star):
    same = cf.simulate(problem, ALGORITHM, 0, batch_size=5, participants=3, seed=4, x_star=x_star, resume=trace)
    assert_same_arrays(trace.columns, same.columns)
    assert_same_state(trace.state, same.state)


@pytest.mark.parametrize("engine", ENGINES)
def test_record_every_keeps_every_kth_round_and_the_last(problem, engine):
    every = ENGINES[engine](problem, ALGORITHM, 7, seed=4)
    some = ENGINES[engine](problem, ALGORITHM, 7, seed=4, record_every=3)
    np.testing.assert_array_equal(some["round"], [0, 3, 6, 7])
    np.testing.assert_allclose(some["objective"], every["objective"][[0, 3, 6, 7]], rtol=1e-14)
    np.testing.assert_array_equal(some.x, every.x)


@pytest.mark.parametrize("engine", ENGINES)
def test_warm_start(problem, engine):
    """Proximal gradient has no memory: starting where it stopped is going on."""
    algorithm = cf.algorithms.ProximalGradient(eta=1.0)
    whole = ENGINES[engine](problem, algorithm, 4)
    half = ENGINES[engine](problem, algorithm, 2)
    warm = ENGINES[engine](problem, algorithm, 2, x0=half.x)
    np.testing.assert_array_equal(warm.x, whole.x)
    np.testing.assert_array_equal(warm["round"], [0, 1, 2])
    np.testing.assert_allclose(warm["objective"], whole["objective"][2:], rtol=1e-14)


def test_vectors_that_a_user_measures_are_saved_shown_and_gone_on_with(problem, tmp_path):
    """The model itself, measured: its last row is the trace's x, whatever becomes of the trace."""

    def own(loss, g, store, algorithm, server, clients):
        x = algorithm.solution(g, server)
        return {"model": x, "size": abs(x).sum()}

    plain, first = cf.simulate(problem, ALGORITHM, 3), cf.simulate(problem, ALGORITHM, 3, measure=own)
    again = cf.Trace.load(first.save(tmp_path / "own"))
    assert_same_arrays(again.columns, first.columns)
    np.testing.assert_array_equal(first["model"][-1], first.x)
    table = first.to_pandas()
    np.testing.assert_array_equal(table["model[1]"], first["model"][:, 1])
    np.testing.assert_array_equal(table["size"], first["size"])
    later = cf.simulate(problem, ALGORITHM, 2, measure=own, resume=plain)
    assert np.isnan(later["model"][:4]).all()
    np.testing.assert_array_equal(later["model"][-1], later.x)
    stopped = cf.simulate(problem, ALGORITHM, 2, resume=again)
    assert np.isnan(stopped["model"][4:]).all()
    assert stopped.then(plain)["model"].shape == (9, problem.d)
    other: Any = lambda *_: {"model": 1.0}  # noqa: E731
    with pytest.raises(cf.InputError, match=r"column 'model' has shape \(\) in a row and had"):
        cf.simulate(problem, ALGORITHM, 2, resume=again, measure=other)

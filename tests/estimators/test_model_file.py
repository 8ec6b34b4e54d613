"""A model as one file: what is read back predicts as before, other programs can read it, damage is one error."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compfed as cf
from compfed.estimators.model_file import NAME, load_model, save_model
from compfed.federation import InProcess

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I8": "<i1", "U16": "<u2", "U32": "<u4", "BOOL": "?"}


def sites(kind: str = "numbers") -> cf.data.Sites:
    rng = np.random.default_rng(3)
    A = [rng.standard_normal((m, 4)) for m in (16, 20)]
    z = [a @ [1.0, -1.0, 0.0, 0.3] + 0.3 * rng.standard_normal(len(a)) for a in A]
    labels = {
        "numbers": z,
        "classes": [np.digitize(v, [-0.4, 0.5]).astype(float) for v in z],
        "two": [(v > 0).astype(float) for v in z],
        "counts": [np.rint(np.exp(0.5 * v)).clip(0, 9) for v in z],
        "outcomes": [np.c_[v, a[:, 1] - v] for a, v in zip(A, z, strict=True)],
    }[kind]
    return cf.data.from_arrays(A, labels, ["north", "south"], columns=["age", "dose", "rate", "bmi"])


CV = {"n_alphas": 2, "eps": 0.3, "cv": 2, "tol": 1e-4}
MODELS: dict[str, tuple[str, Any]] = {
    "FederatedLasso": ("numbers", cf.FederatedLasso(alpha=0.1)),
    "FederatedElasticNet": ("numbers", cf.FederatedElasticNet(alpha=0.1)),
    "FederatedGroupLasso": ("numbers", cf.FederatedGroupLasso(groups=np.array([0, 0, 1, 1]), alpha=0.1)),
    "FederatedHuber": ("numbers", cf.FederatedHuber(alpha=0.1)),
    "FederatedLogisticRegression": ("classes", cf.FederatedLogisticRegression(alpha=0.02)),
    "FederatedPoissonRegressor": ("counts", cf.FederatedPoissonRegressor(alpha=0.1)),
    "FederatedMultiTaskLasso": ("outcomes", cf.FederatedMultiTaskLasso(alpha=0.1)),
    "FederatedNuclearRegressor": ("outcomes", cf.FederatedNuclearRegressor(alpha=0.1)),
    "FederatedLogisticRegressionCV": ("two", cf.FederatedLogisticRegressionCV(**CV)),
    "FederatedMultiTaskLassoCV": ("outcomes", cf.FederatedMultiTaskLassoCV(**CV)),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return cf.FederatedLasso(alpha=0.1).fit_federation(InProcess(sites()))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_estimator_is_read_back(name, tmp_path):
    import pandas as pd

    kind, estimator = MODELS[name]
    data = sites(kind)
    model = estimator.fit_federation(InProcess(data))
    assert save_model(model, tmp_path) == tmp_path / NAME
    assert [path.name for path in tmp_path.iterdir()] == [NAME]  # one file
    again = load_model(tmp_path)
    assert type(again) is type(model)
    frame = pd.DataFrame(np.concatenate(data.features), columns=list(data.columns or ()))
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(again, method)(frame), getattr(model, method)(frame))
    score = again.score(frame, np.concatenate(data.labels))
    assert score == model.score(frame, np.concatenate(data.labels))
    assert getattr(again, "alpha_", None) == getattr(model, "alpha_", None)
    assert again.feature_names_in_.tolist() == ["age", "dose", "rate", "bmi"]
    assert again.n_features_in_ == 4
    assert repr(again.get_params()) == repr({**model.get_params(), **_as_list(model.get_params())})


def _as_list(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in parameters.items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize(
    "kind", ["int8", "uint16", "uint32", "int64", "bool", "float32", "float16", ">i4", "str", "object"]
)
def test_classes_of_every_dtype_are_read_back(tmp_path, kind):
    X = np.random.default_rng(0).standard_normal((40, 3))
    y = (X[:, 0] > 0.1).astype("str" if kind == "object" else kind).astype(kind)
    model = cf.FederatedLogisticRegression(0.1).fit(X, y, sites=np.arange(40) % 2)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.predict(X).dtype.kind == model.predict(X).dtype.kind
    np.testing.assert_array_equal(again.classes_, model.classes_)


def test_words_of_any_language_are_read_back(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 3))
    words = np.where(X[:, 0] > 0.1, "überlebt", "死亡")
    model = cf.FederatedLogisticRegression(0.1).fit(X, words, sites=np.arange(40) % 2)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_numbers_of_another_byte_order_are_read_back_and_other_kinds_are_refused(model, tmp_path):
    changed = load_model(save_model(model, tmp_path))
    changed.coef_ = model.coef_.astype(">f8")
    np.testing.assert_array_equal(load_model(save_model(changed, tmp_path)).coef_, model.coef_)
    changed.coef_ = model.coef_.astype(complex)
    with pytest.raises(cf.InputError, match="coef_ is of dtype complex128, which a model file cannot hold"):
        save_model(changed, tmp_path)


def test_a_file_and_a_folder_can_be_named(model, tmp_path):
    for given, path in (
        (tmp_path / "a.safetensors", "a.safetensors"),
        (tmp_path / "new", f"new/{NAME}"),
        (tmp_path, NAME),
    ):
        assert save_model(model, given) == tmp_path / path
        np.testing.assert_array_equal(load_model(str(given)).coef_, model.coef_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_table_of_a_cross_validation_is_read_back(tmp_path):
    model: Any = cf.FederatedLassoCV(**CV).fit_federation(InProcess(sites()))
    again: Any = load_model(save_model(model, tmp_path))
    assert list(again.cv_results_) == list(model.cv_results_)
    for name, values in model.cv_results_.items():
        np.testing.assert_array_equal(again.cv_results_[name], values)


def test_intercepts_of_sites_are_read_back(tmp_path):
    model: Any = cf.FederatedLasso(alpha=0.1, site_effects="profile").fit_sites(sites())
    assert set(model.site_intercepts_) == {"north", "south"}
    assert load_model(save_model(model, tmp_path)).site_intercepts_ == model.site_intercepts_  # pyright: ignore[reportAttributeAccessIssue]


def test_parameters_by_position_and_by_class_are_read_back(tmp_path):
    given = {"penalty_factors": {0: 0.0, "dose": np.inf}, "bounds": {3: [0.0, None]}, "class_weight": {0: 1.0, 1: 2.0}}
    model = cf.FederatedLogisticRegression(alpha=0.1, **given).fit_sites(sites("two"))
    again = load_model(save_model(model, tmp_path))
    assert {name: again.get_params()[name] for name in given} == given
    np.testing.assert_array_equal(again.fit_sites(sites("two")).coef_, model.coef_)


# --- other programs ---


def read_by_hand(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and facts of a model with struct and json alone."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8 : 8 + size])
    facts = head.pop("__metadata__")
    body, arrays, covered = raw[8 + size :], {}, []
    for name, described in head.items():
        start, stop = described["data_offsets"]
        covered.append((start, stop))
        arrays[name] = np.frombuffer(body[start:stop], DTYPES[described["dtype"]]).reshape(described["shape"])
    # what the format demands: words only, no gaps, no overlaps, nothing behind the last array
    assert all(isinstance(value, str) for value in facts.values())
    ends = [0, *(stop for _, stop in sorted(covered))]
    assert [start for start, _ in sorted(covered)] == ends[:-1]
    assert ends[-1] == len(body)
    assert size % 8 == 0
    assert raw[8:9] == b"{"
    return arrays, json.loads(facts["compfed"])


def test_the_file_can_be_read_with_struct_and_json(tmp_path):
    model = cf.FederatedLogisticRegressionCV(**CV).fit_federation(InProcess(sites("two")))
    arrays, facts = read_by_hand(save_model(model, tmp_path))
    np.testing.assert_array_equal(arrays["coef_"], model.coef_)
    np.testing.assert_array_equal(arrays["intercept_"], model.intercept_)
    assert facts["estimator"] == "FederatedLogisticRegressionCV"
    assert facts["parameters"]["cv"] == 2
    assert facts["attributes"]["alpha_"] == model.alpha_
    assert facts["attributes"]["feature_names_in_"]["words"] == ["age", "dose", "rate", "bmi"]


@pytest.mark.skipif(find_spec("safetensors") is None, reason="safetensors is not installed")
def test_the_file_can_be_read_with_safetensors(model, tmp_path):
    from safetensors.numpy import load_file  # pyright: ignore[reportMissingImports]

    np.testing.assert_array_equal(load_file(save_model(model, tmp_path))["coef_"], model.coef_)


def test_there_is_no_pickle_in_the_file(model, tmp_path):
    import pickletools

    data = save_model(model, tmp_path).read_bytes()
    with pytest.raises(Exception):  # noqa: B017, PT011
        list(pickletools.genops(data))
    assert b"numpy" not in data


# --- writing ---


def test_a_kill_while_writing_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = save_model(model, tmp_path)
    before = path.read_bytes()
    other = cf.FederatedLasso(alpha=0.5).fit_federation(InProcess(sites()))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(other, tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [NAME]
    monkeypatch.undo()
    save_model(other, tmp_path)
    np.testing.assert_array_equal(load_model(tmp_path).coef_, other.coef_)


def test_only_its_owner_can_read_a_model(model, tmp_path):
    before = os.umask(0)
    try:
        path = save_model(model, tmp_path / "deep" / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# --- files that are no models ---


def built(head: Any, body: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def with_facts(**facts: Any) -> bytes:
    whole = {"estimator": "FederatedLasso", "parameters": {}, "attributes": {}, **facts}
    return built({"__metadata__": {"compfed": json.dumps(whole)}})


def with_array(name: str = "coef_", **described: Any) -> bytes:
    facts = json.dumps({"estimator": "FederatedLasso", "parameters": {}, "attributes": {}})
    array = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16], **described}
    return built({"__metadata__": {"compfed": facts}, name: array}, bytes(16))


FOREIGN: dict[str, bytes] = {
    "empty": b"",
    "words": b"not a model at all",
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94",
    "npz": b"PK\x03\x04" + bytes(200),
    "zeros": bytes(100),
    "a head beyond the end": (2**62).to_bytes(8, "little") + b"{}",
    "a list": built([1, 2]),
    "a number": built(3),
    "no metadata": built({"coef_": {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}}),
    "metadata of others": built({"__metadata__": {"format": "pt"}}),
    "deep": built(b"[" * 100_000),
    "estimator": with_facts(estimator="Problem"),
    "an estimator in words": with_facts(estimator=["FederatedLasso"]),
    "a function": with_facts(estimator="minimise"),
    "parameters": with_facts(parameters={"alpa": 1}),
    "parameters in a list": with_facts(parameters=[1]),
    "attributes": with_facts(attributes=[1]),
    "a method": with_facts(attributes={"predict": 1}),
    "a private name": with_facts(attributes={"__class__": 1}),
    "an array over a method": with_array("fit"),
    "dtype": with_array(dtype="BF16"),
    "shape": with_array(shape=[3]),
    "a negative shape": with_array(shape=[-2, -1]),
    "a huge shape": with_array(shape=[10**30]),
    "infinite offsets": with_array(data_offsets=[0, float("inf")]),
    "offsets beyond the end": with_array(data_offsets=[0, 10**12]),
    "negative offsets": with_array(data_offsets=[-8, 8]),
    "offsets backwards": with_array(data_offsets=[16, 0]),
    "one offset": with_array(data_offsets=[0]),
    "not utf-8": built(b'{"\xff": 1}'),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_files_give_one_error_that_names_the_file(what, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(FOREIGN[what])
    with pytest.raises(cf.InputError) as problem:
        load_model(path)
    assert str(problem.value).startswith(str(path))
    assert len(str(problem.value)) < 500


def test_a_model_that_is_damaged_or_cut_gives_one_error_or_is_whole(model, tmp_path):
    """Bytes of the head changed one by one, and every length that a copy can stop at."""
    data = save_model(model, tmp_path).read_bytes()
    path = tmp_path / "damaged.safetensors"
    end = 8 + int.from_bytes(data[:8], "little")
    for at in range(0, end, 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with contextlib.suppress(cf.InputError):  # and nothing else
            load_model(path)
    for length in range(0, len(data), 11):
        path.write_bytes(data[:length])
        with pytest.raises(cf.InputError):
            load_model(path)


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(cf.InputError, match=r"nowhere holds no model: there is no model\.safetensors. Give the folder"):
        load_model(tmp_path / "nowhere")

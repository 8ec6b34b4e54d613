"""A fitted estimator as one file that any program can read: safetensors, with everything but the arrays in its metadata.

No pickle, no code. The file is written atomically: after a crash it holds the whole new model or the whole old one.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.files import write_private
from compfed._utils.plain import plain
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.schema import Schema

NAME = "model.safetensors"
DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def save_model(model: FederatedModel, path: str | Path) -> Path:
    """Write a fitted estimator to a safetensors file: its parameters, and every fitted attribute that is plain.

    Parameters
    ----------
    model : estimator
        A fitted estimator of compfed.
    path : path
        A file, or a folder in which the file is called model.safetensors.

    Returns
    -------
    path
        The file.

    Raises
    ------
    InputError
        Where an attribute has a dtype that the file cannot hold.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.save_model(model, "my-run")  # doctest: +SKIP
    """
    path = _file(path)
    arrays, attributes = dict[str, np.ndarray](), dict[str, Any]()
    for name, value in vars(model).items():
        if not name.endswith("_") or name.startswith("_"):
            continue
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):  # cv_results_, site_intercepts_
            attributes[name] = {
                "entries": {k: each for k, each in value.items() if not _keep_array(arrays, f"{name}.{k}", each)}
            }
        elif isinstance(value, np.ndarray) and value.dtype.kind in "OU":
            attributes[name] = {"words": value.tolist(), "object": value.dtype == object}
        elif not _keep_array(arrays, name, value) and isinstance(value, (bool, int, float, str, np.generic)):
            attributes[name] = value.item() if isinstance(value, np.generic) else value
    parameters = {name: _with_pairs(value) for name, value in model.get_params().items()}
    facts = {"estimator": type(model).__name__, "parameters": parameters, "attributes": attributes}
    schema = getattr(model, "schema_", None)
    facts |= {} if schema is None else {"schema": schema.to_toml()}
    write_private(path, _tensors(arrays, json.dumps(facts, default=plain)))
    return path


def load_model(path: str | Path) -> FederatedModel:
    """Read a fitted estimator that `save_model` wrote: it predicts and scores as before.

    Parameters
    ----------
    path : path
        The file, or its folder.

    Returns
    -------
    estimator

    Raises
    ------
    InputError
        Where there is no such file, or it is damaged.

    Examples
    --------
    >>> import compfed as cf
    >>> model = cf.load_model("my-run")  # doctest: +SKIP
    """
    path = _file(path)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        way_out = "Give the folder of a run that has finished, or a file of cf.save_model."
        raise InputError(f"{path.parent} holds no model: there is no {path.name}. {way_out}") from None
    except OSError as problem:
        raise InputError(f"{path} holds no model: {problem.strerror}.") from None
    try:
        return _loaded(data)
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as problem:
        raise InputError(f"{path} is not a model of compfed, or it is damaged ({type(problem).__name__}).") from None


def _loaded(data: bytes) -> FederatedModel:
    end = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:end])
    facts = json.loads(head.pop("__metadata__")["compfed"])
    estimators = importlib.import_module("compfed.estimators")  # which imports this module
    if facts["estimator"] not in estimators.__all__ or not facts["estimator"].startswith("Federated"):
        raise InputError(f"{facts['estimator']!r} is not an estimator of compfed.")
    parameters = {name: _without_pairs(value) for name, value in facts["parameters"].items()}
    model = getattr(estimators, facts["estimator"])(**parameters)
    attributes = {name: _attribute(value) for name, value in facts["attributes"].items()}
    for name, described in head.items():
        start, stop = (end + int(offset) for offset in described["data_offsets"])
        if not end <= start <= stop <= len(data):
            raise InputError("an array lies outside the file; it is damaged.")
        array = np.frombuffer(data[start:stop], DTYPES[described["dtype"]]).reshape(described["shape"])
        of, _, entry = name.partition(".")
        if entry:
            attributes[of][entry] = array.copy()
        else:
            attributes[name] = array.copy()
    for name, value in attributes.items():
        if not name.endswith("_") or name.startswith("_"):
            raise InputError(f"{name!r} is not a fitted attribute.")
        setattr(model, name, value)
    if "schema" in facts:
        model.schema_ = Schema.from_toml(facts["schema"], "its schema")
    return model


def _keep_array(arrays: dict[str, np.ndarray], name: str, value: object) -> bool:
    """Whether a value is an array of numbers; it is kept for the file then."""
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OU":
        return False
    arrays[name] = value.astype(value.dtype.newbyteorder("<"), copy=False)
    if arrays[name].dtype not in NAMES:
        raise InputError(f"{name} is of dtype {value.dtype}, which a model file cannot hold.")
    return True


def _attribute(value: Any) -> Any:
    """A fitted attribute that is no array of numbers, as `save_model` wrote it."""
    if not isinstance(value, dict):
        return value
    if "entries" in value:
        return dict(value["entries"])
    return np.array(value["words"], object if value["object"] else str)


def _with_pairs(value: Any) -> Any:
    """A parameter without dicts and Series: JSON would make text of keys that are positions or classes."""
    if hasattr(value, "index") and hasattr(value, "items"):  # a Series of pandas
        value = dict(value.items())
    if isinstance(value, Mapping):
        return {"pairs": [[key, _with_pairs(each)] for key, each in value.items()]}
    return [_with_pairs(each) for each in value] if isinstance(value, (list, tuple)) else value


def _without_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_pairs(each) for key, each in value["pairs"]}
    return [_without_pairs(each) for each in value] if isinstance(value, list) else value


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path / NAME if path.is_dir() or not path.suffix else path


def _tensors(arrays: dict[str, np.ndarray], metadata: str) -> bytes:
    head: dict[str, Any] = {"__metadata__": {"compfed": metadata}}
    numbers, at = [], 0
    for name, array in arrays.items():
        numbers.append(array.tobytes())
        head[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    return b"".join([len(text).to_bytes(8, "little"), text, *numbers])

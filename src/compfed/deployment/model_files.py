"""A fitted estimator as two files that any program can read: arrays as safetensors, the rest as JSON. No pickle.

model.safetensors    coef_, intercept_, ...: 8 bytes of length, a JSON head with dtype, shape and offsets, the numbers
model.json           the class, its parameters, names of columns, sites and classes
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import compfed
from compfed.errors import InputError
from compfed.tools import durable

DTYPES = {
    "F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def save(model: Any, folder: Path) -> None:
    """What predictions need, and what a person wants to know: every fitted attribute that is plain."""
    arrays, plain = dict[str, np.ndarray](), dict[str, Any]()
    for name, value in vars(model).items():
        if not name.endswith("_") or name.startswith("_"):
            continue
        if isinstance(value, np.ndarray) and value.dtype in NAMES:
            arrays[name] = value
        elif isinstance(value, np.ndarray) and value.dtype.kind in "OU":
            plain[name] = {"words": value.tolist(), "object": value.dtype == object}
        elif isinstance(value, (bool, int, float, str, np.generic)):
            plain[name] = value.item() if isinstance(value, np.generic) else value
    said = {"estimator": type(model).__name__, "parameters": model.get_params(), "attributes": plain}
    durable.write(folder / "model.safetensors", _tensors(arrays))
    durable.write(folder / "model.json", json.dumps(said, indent=2, default=_plain).encode())


def load(folder: str | Path) -> Any:
    """The estimator that `save` was given, fitted: it predicts and scores as it did."""
    folder = Path(folder)
    try:
        said = json.loads((folder / "model.json").read_text())
        data = (folder / "model.safetensors").read_bytes()
    except OSError as problem:
        raise InputError(f"{folder} holds no model: {problem.strerror}.") from None
    if said["estimator"] not in compfed.__all__:
        raise InputError(f"{folder / 'model.json'} is of {said['estimator']!r}, which is no estimator of compfed.")
    model = getattr(compfed, said["estimator"])(**said["parameters"])
    for name, value in said["attributes"].items():
        words = isinstance(value, dict)
        setattr(model, name, np.array(value["words"], object if value["object"] else str) if words else value)
    end = 8 + int.from_bytes(data[:8], "little")
    for name, described in json.loads(data[8:end]).items():
        start, stop = (end + offset for offset in described["data_offsets"])
        array = np.frombuffer(data[start:stop], DTYPES[described["dtype"]]).reshape(described["shape"])
        setattr(model, name, array.copy())
    return model


def _tensors(arrays: dict[str, np.ndarray]) -> bytes:
    head, numbers, at = {}, [], 0
    for name, array in arrays.items():
        numbers.append(array.tobytes())
        head[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    return b"".join([len(text).to_bytes(8, "little"), text, *numbers])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)

"""What travels: records of arrays, written and read by field name, dtype and shape. No code and no pickle.

A message is a list of questions or of answers. It is packed into a head (names and plain values, as JSON) and arrays; the
reader builds it again from classes it knows, and refuses what it does not know: records of this library, and those that
the site lists as accepted ("module:object"). A record with `told_once` travels the first time and is referred to by the
hash of its content afterwards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from compfed.errors import InputError
from compfed.problem.losses import Model

# Where records may come from without being listed: every class in them is data, and building it runs no foreign code.
OURS = (
    "compfed.federation.questions", "compfed.federation.view", "compfed.problem.losses", "compfed.problem.regularisers",
    "compfed.algorithms", "compfed.studies.ablation", "compfed.tools.site_facts",
)  # fmt: skip
KINDS = "biufU"  # of arrays: booleans, whole numbers, numbers, words


class Packed(NamedTuple):
    """A message apart: `head` is plain data, the arrays are beside it."""

    head: Any
    arrays: list[np.ndarray]


class NotTold(InputError):
    """A message refers to a record by its hash, and the reader does not have it."""


class Told(Protocol):
    """Records that travelled before, by hash."""

    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> Any: ...
    def __setitem__(self, name: str, record: Any, /) -> None: ...


# --- trees of an algorithm's own types, by name ---


def named(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their path: {"x": ..., "momentum.q": ...}."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def unnamed(arrays: Mapping[str, np.ndarray], like: Any) -> Any:
    """The tree shaped `like` another, from arrays by name; refuses other names, shapes or dtypes."""
    expected = jax.tree_util.tree_leaves_with_path(like)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in expected]
    if sorted(names) != sorted(arrays):
        raise InputError(f"a message has the fields {sorted(arrays)}; expected {sorted(names)}.")
    for name, (_, leaf) in zip(names, expected, strict=True):
        got = arrays[name]
        if got.shape != leaf.shape or got.dtype != leaf.dtype:
            raise InputError(
                f"field {name!r} of a message has shape {got.shape} and dtype {got.dtype}; expected {leaf.shape} and "
                f"{leaf.dtype}."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in names])


# --- packing ---


def pack(value: Any, told: Collection[str] = ()) -> Packed:
    """The value as plain data and arrays; records whose hash is in `told` by that hash alone."""
    arrays: list[np.ndarray] = []

    def plain(value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, np.generic):
            return plain(value.item(), path)
        if isinstance(value, (np.ndarray, jax.Array)):
            arrays.append(_sendable(np.asarray(value), path))
            return {"array": len(arrays) - 1}
        if getattr(value, "told_once", False) and (name := digest(value)) in told:
            return {"told": name}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: plain(getattr(value, f.name), f"{path}.{f.name}") for f in dataclasses.fields(value)}
            return {"record": _name(type(value)), "fields": fields}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = zip(value._fields, value, strict=True)  # pyright: ignore[reportAttributeAccessIssue]  # a NamedTuple
            return {"record": _name(type(value)), "fields": {k: plain(v, f"{path}.{k}") for k, v in items}}
        if isinstance(value, (tuple, list)):
            return {"tuple": [plain(item, f"{path}.{i}") for i, item in enumerate(value)]}
        if isinstance(value, Mapping):
            return {"dict": {str(k): plain(v, f"{path}.{k}") for k, v in value.items()}}
        if isinstance(value, Model):
            params = value.unravel(value.start)
            return {"model": _name(value.function), "params": plain(params, f"{path}.params")}
        raise InputError(
            f"{path}: a {type(value).__name__} cannot travel; only numbers, words, arrays and records can."
        )

    return Packed(plain(value, type(value).__name__), arrays)


def unpack(packed: Packed, accepts: Collection[str] = (), told: Told | None = None) -> Any:
    """What `pack` was given. `told` holds the records that travelled before, by hash, and gains those that are new."""
    known: Told = {} if told is None else told

    def built(head: Any) -> Any:
        if not isinstance(head, dict):
            return head
        if "float" in head:
            return float.fromhex(head["float"])
        if "array" in head:
            return packed.arrays[head["array"]]
        if "told" in head:
            if head["told"] not in known:
                raise NotTold(f"a message refers to {head['told'][:12]}, which was not told before; send it in full.")
            return known[head["told"]]
        if "tuple" in head:
            return tuple(built(item) for item in head["tuple"])
        if "dict" in head:
            return {k: built(v) for k, v in head["dict"].items()}
        if "model" in head:
            return Model(_found(head["model"], accepts), built(head["params"]))
        if "record" in head:
            return record(head)
        raise InputError(f"a message holds {sorted(head)}, which is nothing known.")

    def record(head: dict[str, Any]) -> Any:
        cls: Any = _found(head["record"], accepts)
        expected = set(getattr(cls, "_fields", ())) or {f.name for f in dataclasses.fields(cls)}
        if set(head["fields"]) != expected:
            raise InputError(f"{head['record']} has the fields {sorted(expected)}; got {sorted(head['fields'])}.")
        made = cls(**{k: built(v) for k, v in head["fields"].items()})
        if getattr(made, "told_once", False):
            known[digest(made)] = made
        return made

    return built(packed.head)


def digest(record: Any) -> str:
    """The hash of a record's content; worked out once."""
    kept = record.__dict__.get("_digest")
    if kept is None:
        fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        try:
            packed = pack(fields)
        except InputError:  # holds what cannot travel: it stays in this process, where it is itself and no other
            return record.__dict__.setdefault("_digest", f"in this process: {id(record)}")
        content = hashlib.sha256(json.dumps(packed.head, sort_keys=True).encode())
        for array in packed.arrays:
            content.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        kept = record.__dict__["_digest"] = content.hexdigest()
    return kept


# --- bytes ---


def to_bytes(packed: Packed) -> bytes:
    """Head and arrays, one after another."""
    described = [{"dtype": a.dtype.str, "shape": a.shape} for a in packed.arrays]
    head = json.dumps({"head": packed.head, "arrays": described}).encode()
    return b"".join(
        [len(head).to_bytes(8, "little"), head, *(np.ascontiguousarray(a).tobytes() for a in packed.arrays)]
    )


def from_bytes(data: bytes) -> Packed:
    """What `to_bytes` was given; refuses bytes that are not a message."""
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        content = json.loads(data[8:end])
        arrays = []
        for described in content["arrays"]:
            dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
            if dtype.kind not in KINDS:
                raise InputError(f"a message holds an array of dtype {dtype}; it cannot travel.")
            size = dtype.itemsize * int(np.prod(shape, dtype=int))
            arrays.append(np.frombuffer(data[end : end + size], dtype).reshape(shape))
            end += size
        if end != len(data):
            raise ValueError("bytes left over")
        return Packed(content["head"], arrays)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"these {len(data)} bytes are not a message of compfed: {error}") from None


def payload(value: Any, told: set[str]) -> int:
    """Bytes of the numbers in a question or an answer; what was told before costs nothing, and `told` gains the rest.

    Numbers and arrays count; names, labels of a message and its framing do not.
    """
    if isinstance(value, (np.ndarray, jax.Array)):
        return value.nbytes
    if isinstance(value, float):
        return 8
    if getattr(value, "told_once", False):
        if (name := digest(value)) in told:
            return 0
        told.add(name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(payload(getattr(value, f.name), told) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return sum(payload(item, told) for item in value.values())
    return sum(payload(item, told) for item in value) if isinstance(value, (tuple, list)) else 0


# --- names ---


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _found(name: str, accepts: Collection[str]) -> Any:
    """The class or function called `module:object`, if it is one of ours or accepted."""
    module, _, path = name.partition(":")
    ours = any(module == package or module.startswith(package + ".") for package in OURS)
    if not ours and name not in accepts:
        raise InputError(
            f"a message names {name}, which is not of compfed. Install it at the site and list it there as accepted."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise InputError(f"a message names {name}, which is not installed here.") from None
    if ours and not (dataclasses.is_dataclass(found) or hasattr(found, "_fields")):
        raise InputError(f"a message names {name}, which is no record.")
    return found


def _sendable(array: np.ndarray, path: str) -> np.ndarray:
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        array = array.astype(str)
    if array.dtype.kind not in KINDS:
        raise InputError(f"{path}: an array of dtype {array.dtype} cannot travel; only numbers and words can.")
    return array

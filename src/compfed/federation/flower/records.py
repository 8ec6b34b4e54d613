"""Messages of the boundary as records of Flower: arrays, and words beside them. No pickle, no code.

RecordDict
  "arrays"  ArrayRecord: "float64" -> all arrays of double precision, end to end; the same for other kinds of numbers
  "words"   ConfigRecord: the envelope (run, number, ...), the head of the message as JSON, which names the field of every
            array, and their shapes

Flower carries every record and every array in requests of its own, at each of six hops down and up, and fails with hundreds of
them. So up to a megabyte of arrays travels as bytes among the words, and a message is one record.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from compfed.errors import InputError
from compfed.federation.messages import KINDS, Packed, pack, to_bytes

PROTOCOL = 2  # of the envelope and of how arrays travel; a site and a server of different ones say so

SMALL = 2**20  # bytes of arrays that travel among the words
NUMBERS = "numbers of "  # before the kind, where they do

Envelope = dict[str, str | int]


def to_records(envelope: Envelope, packed: Packed | None = None) -> RecordDict:
    """An envelope, and a message in it; every record is new, as Flower may keep them by reference."""
    words: dict[str, Any] = {**envelope, "protocol": PROTOCOL}
    if packed is None:
        return RecordDict({"words": ConfigRecord(words)})
    words["head"] = json.dumps(packed.head)
    words["shapes"] = json.dumps([[array.dtype.str, array.shape] for array in packed.arrays])
    parts: dict[str, list[np.ndarray]] = {}
    for array in packed.arrays:
        parts.setdefault(array.dtype.name, []).append(array.ravel())
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    if sum(array.nbytes for array in joined.values()) <= SMALL:
        words |= {NUMBERS + array.dtype.str: array.tobytes() for array in joined.values()}
        return RecordDict({"words": ConfigRecord(words)})
    arrays = ArrayRecord({name: Array(array) for name, array in joined.items()})
    return RecordDict({"words": ConfigRecord(words), "arrays": arrays})


def from_records(records: RecordDict) -> tuple[dict[str, Any], Packed | None]:
    """What `to_records` was given; refuses what is not a message of this protocol."""
    words = records.get("words")
    if not isinstance(words, ConfigRecord) or words.get("protocol") != PROTOCOL:
        said = words.get("protocol") if isinstance(words, ConfigRecord) else None
        raise InputError(
            f"a message of protocol {said}; this side speaks {PROTOCOL}. Use one version of compfed everywhere."
        )
    kept = ("protocol", "head", "shapes")
    envelope = {key: value for key, value in words.items() if key not in kept and not key.startswith(NUMBERS)}
    if "head" not in words:
        return envelope, None
    try:
        head = json.loads(str(words["head"]))
        shapes = [(np.dtype(dtype), tuple(shape)) for dtype, shape in json.loads(str(words["shapes"]))]
    except (KeyError, TypeError, ValueError):
        raise InputError("the head of a message cannot be read.") from None
    sent, fields = records.get("arrays"), _fields(head)
    found = {name: _read(name, array) for name, array in sent.items()} if isinstance(sent, ArrayRecord) else {}
    for key, data in words.items():
        if key.startswith(NUMBERS):
            array = _from_bytes(key, data)
            if array.dtype.name in found:
                raise InputError(f"a message has numbers of {array.dtype.name} twice.")
            found[array.dtype.name] = array
    return envelope, Packed(head, _apart(found, fields, shapes))


def _apart(found: dict[str, np.ndarray], fields: list[str], shapes: list[tuple[np.dtype, Any]]) -> list[np.ndarray]:
    """The arrays that lie end to end, each with its own shape; nothing may be missing or left over."""
    if len(fields) != len(shapes):
        raise InputError(f"a message names {len(fields)} arrays and gives {len(shapes)} shapes.")
    at, arrays = dict.fromkeys(found, 0), []
    for name, (dtype, shape) in zip(fields, shapes, strict=True):
        key, size = dtype.name, int(np.prod(shape, dtype=int))
        if key not in found or found[key].dtype != dtype or found[key].ndim != 1:
            raise InputError(f"a message has the arrays {sorted(found)}; its head names {name!r} of dtype {dtype}.")
        part = found[key][at[key] : at[key] + size]
        if part.size != size:
            raise InputError(f"array {key!r} of a message is too short for {name!r}.")
        arrays.append(part.reshape(shape).copy())  # aligned and apart: what is done with one touches no other
        at[key] += size
    for key, used in at.items():
        if used != found[key].size:
            raise InputError(f"array {key!r} of a message has {found[key].size} numbers; its head names {used}.")
    return arrays


def asked(questions: Any) -> str:
    """The hash of questions or answers by their content, however much of it was told before."""
    return hashlib.sha256(to_bytes(pack(questions, told=_Everything()))).hexdigest()


class _Everything:
    """Contains whatever it is asked for."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Any:
        raise TypeError("everything cannot be listed")

    def __len__(self) -> int:
        raise TypeError("everything cannot be counted")


def _from_bytes(key: str, data: Any) -> np.ndarray:
    try:
        dtype = np.dtype(key.removeprefix(NUMBERS))
        if dtype.kind in KINDS:
            return np.frombuffer(data, dtype)
    except (TypeError, ValueError):
        pass
    raise InputError(f"the {key!r} of a message cannot be read.")


def _read(name: str, array: Array) -> Any:
    try:
        found = array.numpy()  # np.load with allow_pickle=False
    except Exception as problem:
        raise InputError(f"array {name!r} of a message cannot be read: {type(problem).__name__}.") from None
    if found.dtype.kind not in KINDS:
        raise InputError(f"array {name!r} of a message has dtype {found.dtype}; it cannot travel.")
    return found


def _fields(head: Any) -> list[str]:
    """The fields that the arrays in a head are of, in the order in which `pack` numbered them."""
    found: dict[int, str] = {}

    def walk(part: Any, path: str) -> None:
        match part:
            case {"array": int(k)}:
                found[k] = path
            case {"record": str(name), "fields": dict(fields)}:
                for key, value in fields.items():
                    walk(value, f"{path}.{name.rpartition(':')[2]}.{key}")
            case {"tuple": list(items)}:
                for value in items:
                    walk(value, path)
            case {"dict": dict(items)}:
                for key, value in items.items():
                    walk(value, f"{path}.{key}")
            case {"model": str(), "params": params}:
                walk(params, f"{path}.params")

    walk(head, "")
    if sorted(found) != list(range(len(found))):
        raise InputError("the head of a message does not number its arrays.")
    return [found[k].lstrip(".") or "array" for k in range(len(found))]

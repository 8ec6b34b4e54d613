"""The codec of messages: records of arrays, written and read by field name, dtype and shape. No code and no pickle.

A message is a list of queries or of replies. It is packed into a head (names and plain values, as JSON) and arrays; the
reader builds it again from a closed list of classes, and from those that a site lists as accepted ("module:object"). A
record with `sent_once` travels the first time and is referred to by the hash of its content afterwards.

Neither side trusts the other. Bytes are checked before anything is allocated for them, and malformed bytes or heads raise
`InputError` and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import jax
import numpy as np

from compfed import splits
from compfed._utils.records import is_record
from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.federation import spec
from compfed.federation.enrolment import Enrolment
from compfed.federation.query import Weighted
from compfed.losses import Model
from compfed.regularisers.base import Adapted

# dtypes that travel, beside words of 1 to 200 characters ("<U1" to "<U200")
DTYPES = frozenset(("|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f4", "<f8"))
MAX_WORD = 200  # characters of a word in an array, of a key, of a name
MAX_ARRAYS = 50_000
MAX_DIMENSIONS = 8
MAX_HEAD_BYTES = 2**24
MAX_DEPTH = 64  # of the JSON; a record and its fields are two levels
MAX_NODES = 1_000_000  # of the JSON
MAX_OBJECTS = 200_000  # JSON objects among these: a dictionary takes a few hundred bytes
MAX_RECORDS = 50_000
MAX_SENT_ONCE = 2_000  # records in a message that are kept: each is hashed
IN_THIS_PROCESS = "in this process: "  # begins the name of a record that cannot travel
INT = 2**63  # whole numbers are below this in size

# Packages whose records may be named: every class made with `record` in them is data, and building it runs no foreign code.
RECORD_PACKAGES = (
    "compfed.losses", "compfed.regularisers", "compfed.algorithms", "compfed.studies.ablation",
)  # fmt: skip
_NOT_SENT = (Adapted,)  # holds an object of the process it was made in
_SPECS = (
    Weighted, spec.FeatureScaling, spec.ObjectiveSpec, spec.RunSpec, splits.Fold, splits.SiteFold,
    splits.PredefinedSplit, splits.Holdout,
)  # fmt: skip


T = TypeVar("T")


class Packed(NamedTuple):
    """A message apart: `head` is plain data, the arrays are beside it."""

    head: object  # JSON
    arrays: list[np.ndarray]


class NotCached(InputError):
    """A message refers to a record by its hash, and the reader does not have it."""


class Cached(Protocol):
    """Records that travelled before, by hash."""

    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> object: ...
    def __setitem__(self, name: str, record: object, /) -> None: ...


# --- trees of an algorithm's own types, by name ---


def named(tree: object) -> dict[str, np.ndarray]:
    """The arrays of a tree by their path: {"x": ..., "momentum.q": ...}."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def unnamed(arrays: Mapping[str, np.ndarray], like: T) -> T:
    """The tree shaped `like` another, from arrays by name; refuses other names, shapes or dtypes."""
    if not isinstance(arrays, Mapping) or not all(isinstance(a, (np.ndarray, jax.Array)) for a in arrays.values()):
        raise InputError("a message has fields that are not arrays.")
    expected = jax.tree_util.tree_leaves_with_path(like)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in expected]
    if sorted(names) != sorted(arrays):
        raise InputError(
            f"a message has the fields {printable(str(sorted(map(str, arrays))[:20]))}; expected {sorted(names)}."
        )
    for name, (_, leaf) in zip(names, expected, strict=True):
        got = arrays[name]
        if got.shape != leaf.shape or got.dtype != leaf.dtype:
            raise InputError(
                f"field {name!r} of a message has shape {got.shape} and dtype {got.dtype}; expected {leaf.shape} and "
                f"{leaf.dtype}."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in names])


# --- packing ---


def pack(value: object, cached: Collection[str] = ()) -> Packed:
    """The value as plain data and arrays; records whose hash is in `cached` by that hash alone."""
    arrays: list[np.ndarray] = []

    def plain(value: object, path: str) -> object:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            if not _is_unicode(value):
                raise InputError(
                    f"{path}: a word with half a character (a surrogate) cannot travel. Write it in UTF-8."
                )
            return value
        if isinstance(value, int):
            if not -INT <= value < INT:
                raise InputError(f"{path}: a whole number beyond 2**63 in size cannot travel. Send it as a float.")
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, np.generic):
            return plain(value.item(), path)
        if isinstance(value, (np.ndarray, jax.Array)):
            arrays.append(_sendable(np.asarray(value), path))
            return {"array": len(arrays) - 1}
        if getattr(value, "sent_once", False) and (name := digest(value)) in cached:
            return {"cached": name}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: plain(getattr(value, f.name), f"{path}.{f.name}") for f in dataclasses.fields(value)}
            return {"record": _name(type(value)), "fields": fields}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = zip(value._fields, value, strict=True)  # pyright: ignore[reportAttributeAccessIssue]  # a NamedTuple
            return {"record": _name(type(value)), "fields": {k: plain(v, f"{path}.{k}") for k, v in items}}
        if isinstance(value, (tuple, list)):
            return {"tuple": [plain(item, f"{path}.{i}") for i, item in enumerate(value)]}
        if isinstance(value, Mapping):
            return {"dict": {_key(k, path): plain(v, f"{path}.{k}") for k, v in value.items()}}
        if isinstance(value, Model):
            params = value.unravel(value.start)
            return {"model": _name(value.function), "params": plain(params, f"{path}.params")}
        raise InputError(
            f"{path}: a {type(value).__name__} cannot travel; only numbers, words, arrays and records can."
        )

    return Packed(plain(value, type(value).__name__), arrays)


def unpack(
    packed: Packed, accepts: Collection[str] = (), cached: Cached | None = None, records: Collection[str] | None = None
) -> Any:
    """The value that `pack` was given.

    Parameters
    ----------
    accepts : names "module:object" that a site lists; exactly these are imported, beside the records of this library.
    cached : records that travelled before, by hash; gains the new ones once the whole message is read.
    records : names of the only records allowed, such as `REPLY_RECORDS` where a server reads a reply; all by default.

    Raises
    ------
    InputError
        For everything that `pack` does not write, and nothing else is raised for it.
    """
    reader = _Reader(packed.arrays, accepts, {} if cached is None else cached, records)
    value = reader.built(packed.head, 0)
    if not all(reader.used):
        raise InputError(f"a message has {len(reader.used)} arrays; its head refers to {sum(reader.used)} of them.")
    for name, record in reader.new.items():
        reader.cached[name] = record
    return value


class _Reader:
    """One message being read: what it used so far, and the records it brought."""

    def __init__(
        self, arrays: list[np.ndarray], accepts: Collection[str], cached: Cached, records: Collection[str] | None
    ):
        self.arrays, self.accepts, self.cached, self.allowed = arrays, accepts, cached, records
        self.used = [False] * len(arrays)
        self.new: dict[str, object] = {}
        self.records = 0

    def built(self, head: object, depth: int) -> object:
        if head is None or type(head) in (bool, str):
            return head
        if type(head) is int:
            return _bounded(head)
        if type(head) is not dict or depth > MAX_DEPTH:
            raise InputError(f"a message holds a {type(head).__name__} that is unknown, or nested too deeply.")
        build = _BUILD.get(frozenset(head))
        if build is None:
            raise InputError(f"a message holds {printable(str(list(head)[:5]), 100)}, which is unknown.")
        return build(self, next(iter(head.values())) if len(head) == 1 else head, depth + 2)

    def read_float(self, text: object, depth: int) -> float:
        try:
            if type(text) is str and len(text) < 40 and (value := float.fromhex(text)).hex() == text:
                return value
        except (ValueError, OverflowError):
            pass
        raise InputError("a message holds a number that is not a float in hexadecimal.")

    def read_array(self, k: object, depth: int) -> np.ndarray:
        if type(k) is not int or not 0 <= k < len(self.arrays) or self.used[k]:
            raise InputError(
                f"a message with {len(self.arrays)} arrays refers to an array that is missing, or to one twice."
            )
        self.used[k] = True
        return self.arrays[k]

    def read_cached(self, name: object, depth: int) -> object:
        if type(name) is not str or len(name) > MAX_WORD:
            raise InputError("a message refers to a record by something that is not a hash.")
        if name in self.new:
            return self.new[name]
        if name not in self.cached:
            short = printable(name[:12])
            raise NotCached(f"a message refers to {short}, which was not sent before; send it in full.")
        return self.cached[name]

    def read_tuple(self, items: object, depth: int) -> object:
        if type(items) is not list:
            raise InputError("a message holds a sequence that is not a list.")
        return tuple([self.built(item, depth) for item in items])

    def read_dict(self, items: object, depth: int) -> object:
        if type(items) is not dict or not all(type(k) is str and len(k) <= MAX_WORD for k in items):
            raise InputError(f"a message holds a table whose keys are not words of at most {MAX_WORD} characters.")
        return {k: self.built(v, depth) for k, v in items.items()}

    def read_model(self, head: dict[str, object], depth: int) -> object:
        name = self.name(head["model"])
        if self.allowed is not None or name not in self.accepts:
            _not_ours(name)
        function = _imported(name)
        params = self.built(head["params"], depth)
        return self.made(name, lambda: Model(function, params))

    def read_record(self, head: dict[str, object], depth: int) -> object:
        name, given = self.name(head["record"]), head["fields"]
        cls = self.found(name)
        expected = _fields_of(cls)
        if type(given) is not dict or given.keys() != expected.keys():
            got = printable(str(sorted(given)[:20])) if type(given) is dict else "no fields"
            raise InputError(f"{name} has the fields {sorted(expected)}; got {got}.")
        self.records += 1
        if self.records > MAX_RECORDS:
            raise InputError(f"a message has more than {MAX_RECORDS} records. Send fewer queries at a time.")
        values = {k: self.built(v, depth) for k, v in given.items()}
        made = self.made(name, lambda: cls(**values))
        if getattr(made, "sent_once", False):
            if len(self.new) >= MAX_SENT_ONCE:
                raise InputError(f"a message has more than {MAX_SENT_ONCE} records to keep. Send fewer runs at a time.")
            self.new[self.made(name, lambda: digest(made))] = made
        return made

    def name(self, name: object) -> str:
        if type(name) is not str or len(name) > MAX_WORD:
            raise InputError(
                f"a message names a class by something that is not a word of at most {MAX_WORD} characters."
            )
        return name

    def found(self, name: str) -> type:
        """The class called `module:object`: of the closed list, or accepted by name."""
        if self.allowed is not None:
            if name not in self.allowed:
                raise InputError(f"a message names {printable(name)}, which is not allowed here.")
            return known_records().get(name) or _not_ours(name)
        cls = known_records().get(name)
        if cls is None:
            if name not in self.accepts:
                _not_ours(name)
            cls = _imported(name)
            if not isinstance(cls, type) or not (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")):
                raise InputError(f"a message names {name}, which is not a record.")
        return cls

    def made(self, name: str, make: Callable[[], T]) -> T:
        """Whatever goes wrong while a record is built is the fault of the message."""
        try:
            return make()
        except InputError as problem:
            raise InputError(printable(str(problem))) from None
        except Exception as problem:
            raise InputError(
                f"a message holds a {printable(name)} that cannot be built: {type(problem).__name__}."
            ) from None


_BUILD = {
    frozenset({"float"}): _Reader.read_float, frozenset({"array"}): _Reader.read_array,
    frozenset({"cached"}): _Reader.read_cached, frozenset({"tuple"}): _Reader.read_tuple,
    frozenset({"dict"}): _Reader.read_dict, frozenset({"model", "params"}): _Reader.read_model,
    frozenset({"record", "fields"}): _Reader.read_record,
}  # fmt: skip


def digest(record: object) -> str:
    """The hash of a record's content; computed once."""
    kept = record.__dict__.get("_digest")
    if kept is None:
        fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}  # pyright: ignore[reportArgumentType]
        try:
            packed = pack(fields)
        except InputError:  # holds what cannot travel: it stays in this process, where its address is its name
            return record.__dict__.setdefault("_digest", f"{IN_THIS_PROCESS}{id(record)}")
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
    """The message that `to_bytes` was given; each array is an aligned copy of its own.

    Raises
    ------
    InputError
        For bytes that are not a message. Every size is checked before an array is made.
    """
    try:
        content, end = _read_head(data)
        sizes = [_array_size(described) for described in content["arrays"]]
        if end + sum(size for _, _, size in sizes) != len(data):
            raise ValueError("its arrays have another size than the bytes that are there")
        arrays = []
        for dtype, shape, size in sizes:
            flat = np.frombuffer(data, np.uint8, size, end)
            arrays.append(_checked(flat, dtype).reshape(shape))
            end += size
        return Packed(content["head"], arrays)
    except (KeyError, TypeError, ValueError, RecursionError) as problem:
        reason = printable(str(problem), 200)
        raise InputError(f"these {len(data)} bytes are not a message of compfed: {reason}") from None


def _read_head(data: bytes) -> tuple[Any, int]:
    """The JSON of a message and where it ends, within the limits on its size."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError("it ends before its head does")
    if length > MAX_HEAD_BYTES:
        raise ValueError(f"its head has {length} bytes; at most {MAX_HEAD_BYTES} are read")
    text = data[8 : 8 + length]
    objects = text.count(b"{")
    if objects > MAX_OBJECTS or objects + text.count(b"[") + text.count(b",") > MAX_NODES:
        raise ValueError(f"its head has more than {MAX_NODES} parts")
    content = json.loads(
        text.decode(), object_pairs_hook=_once, parse_int=_int, parse_float=_no_constant, parse_constant=_no_constant
    )
    if type(content) is not dict or content.keys() != {"head", "arrays"} or type(content["arrays"]) is not list:
        raise ValueError("its head has other parts than a head and arrays")
    if len(content["arrays"]) > MAX_ARRAYS:
        raise ValueError(f"it has {len(content['arrays'])} arrays; at most {MAX_ARRAYS} are read")
    _check_nodes(content)
    return content, 8 + length


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key comes twice")
    return table


def _int(text: str) -> int:
    if len(text) > 20:
        raise ValueError("a whole number is beyond 2**63 in size")
    return _bounded(int(text))


def _bounded(value: int) -> int:
    if not -INT <= value < INT:
        raise InputError("a message holds a whole number beyond 2**63 in size.")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError("its head has a number that is not whole")


def _check_nodes(content: object) -> None:
    """Depth, and words that are Unicode, level by level: no recursion."""
    level = [content]
    for _ in range(MAX_DEPTH + 2):
        below: list[object] = []
        for node in level:
            if type(node) is list:
                below += node
            elif type(node) is dict:
                below += node.keys()
                below += node.values()
            elif type(node) is str and not _is_unicode(node):
                raise ValueError("a word has half a character (a surrogate)")
        if not below:
            return
        level = below
    raise ValueError(f"its head is nested more than {MAX_DEPTH} deep")


def _array_size(described: object) -> tuple[np.dtype, tuple[int, ...], int]:
    """(dtype, shape, bytes) of an array, from its description alone."""
    if type(described) is not dict or described.keys() != {"dtype", "shape"}:
        raise ValueError("an array is described by other words than dtype and shape")
    name, shape = described["dtype"], described["shape"]
    if type(name) is not str or not _is_dtype(name):
        raise InputError(f"a message holds an array of dtype {printable(str(name), 30)}; it cannot travel.")
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"the shape of an array is not a list of at most {MAX_DIMENSIONS} whole numbers >= 0")
    dtype = np.dtype(name)
    return dtype, tuple(shape), dtype.itemsize * math.prod(shape)


def _is_dtype(name: str) -> bool:
    return name in DTYPES or (re.fullmatch("<U[1-9][0-9]{0,2}", name) is not None and int(name[2:]) <= MAX_WORD)


def _checked(flat: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Bytes as an array of its own, if every entry of it is a value of the dtype."""
    array = flat.copy().view(dtype)
    if dtype.kind == "b" and flat.size and flat.max() > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    if dtype.kind == "U" and array.size:
        codes = array.view("<u4")
        if codes.max() > 0x10FFFF or ((codes >= 0xD800) & (codes < 0xE000)).any():
            raise ValueError("a word has a character beyond Unicode")
    return array


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- names ---


@functools.cache
def known_records() -> dict[str, type]:
    """The closed list of classes that a message may name, by `module:object`.

    Queries, the specifications they hold, enrolments, and the records of losses, regularisers and algorithms. A class
    is listed under the module it was defined in, so that no path through an import leads to a class of another package.
    """
    from compfed.federation.queries import QUERIES

    explicit = (*QUERIES, Enrolment, *_SPECS)
    ours = [cls for module in _modules() for cls in vars(module).values() if is_record(cls)]
    mine = [cls for cls in ours if any(_within(cls.__module__, package) for package in RECORD_PACKAGES)]
    return {_name(cls): cls for cls in (*explicit, *mine) if cls not in _NOT_SENT}


def _modules() -> Iterator[ModuleType]:
    for package in RECORD_PACKAGES:
        module = importlib.import_module(package)
        yield module
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield importlib.import_module(f"{package}.{found.name}")


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _name(thing: type | Callable[..., object]) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


# The only record that a server reads: the rest of a reply is words.
REPLY_RECORDS = frozenset({_name(Enrolment)})


def _not_ours(name: str) -> NoReturn:
    raise InputError(
        f"a message names {printable(name)}, which is not of compfed. Install it at the site and list it there as accepted."
    )


def _imported(name: str) -> Any:
    """The class or function called `module:object`, which a site lists as accepted."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name_part in path.split("."):
            found = getattr(found, name_part)
    except Exception:
        raise InputError(f"a message names {printable(name)}, which is not installed here.") from None
    return found


@functools.lru_cache(maxsize=1024)
def _fields_of(cls: type) -> dict[str, None]:
    """The names of the fields of a record."""
    return dict.fromkeys(getattr(cls, "_fields", None) or [f.name for f in dataclasses.fields(cls)])


def _key(key: object, path: str) -> str:
    key = str(key)
    if len(key) > MAX_WORD or not _is_unicode(key):
        raise InputError(f"{path}: a key of more than {MAX_WORD} characters, or with half a character, cannot travel.")
    return key


def _sendable(array: np.ndarray, path: str) -> np.ndarray:
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        array = array.astype(str)
    if array.dtype.kind == "U" and array.dtype.itemsize > 4 * MAX_WORD:
        array = array.astype(f"<U{max(1, int(np.char.str_len(array).max(initial=0)))}")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if not _is_dtype(array.dtype.str) or array.ndim > MAX_DIMENSIONS:
        raise InputError(
            f"{path}: an array of dtype {array.dtype} and {array.ndim} dimensions cannot travel; only numbers of at most 8 "
            f"bytes and words of at most {MAX_WORD} characters can, in at most {MAX_DIMENSIONS} dimensions."
        )
    return array

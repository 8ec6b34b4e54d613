"""Frozen records whose numbers are JAX leaves.

A `record` is a frozen dataclass that is also a pytree. Fields made with `positive`, `nonnegative`, `number` or `seed` are
leaves: changing them does not recompile, and a grid over them is one `vmap`. Fields made with `count`, `index`,
`labels`, `choice` or `fixed` shape the program and are static. Each field says what it accepts, and the constructor
checks it once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import numpy as np
import numpy.typing as npt
from jax.core import Tracer
from jax.tree_util import GetAttrKey

from compfed._utils.arrays import set_readonly
from compfed._utils.validation import check_numbers, is_int
from compfed.errors import InputError

T = TypeVar("T")
_REQUIRED: Any = dataclasses.MISSING
# The value to keep, and the requirement that the given one does not meet (None if it does).
Checked = tuple[object, str | None]


# --- fields ---

Field: TypeAlias = Any  # a field stands for the value it will hold, of whatever type its class declares


def _field(default: Any, check: Callable[[Any], Checked], static: bool) -> Any:
    return dataclasses.field(default=default, metadata={"check": check, "static": static})


def _leaf(default: object, requirement: str, accepts: Callable[[np.ndarray], npt.ArrayLike]) -> Any:
    def check(value: object) -> Checked:
        if isinstance(value, Tracer):  # has no value yet
            return value, None
        try:
            array = set_readonly(np.array(check_numbers(value, "")))  # a copy: the caller may change theirs
        except InputError:
            return value, requirement
        fits = array.size and np.all(accepts(array))
        return (float(array) if array.ndim == 0 else array), None if fits else requirement

    return _field(default, check, static=False)


def _static(default: object, requirement: str, accepts: Callable[[Any], bool], convert: Callable[[Any], object]) -> Any:
    def check(value: object) -> Checked:
        return (convert(value), None) if accepts(value) else (value, requirement)

    return _field(default, check, static=True)


def positive(default: object = _REQUIRED) -> Field:
    """A leaf: a finite number > 0."""
    return _leaf(default, "a finite number > 0", lambda v: (v.ndim == 0) & np.isfinite(v) & (v > 0))


def nonnegative(default: object = _REQUIRED, scalar: bool = False) -> Field:
    """A leaf: a finite number >= 0 (or an array of them, unless it must be a scalar)."""
    requirement = "a finite number >= 0" if scalar else "finite and >= 0"
    return _leaf(default, requirement, lambda v: np.isfinite(v) & (v >= 0) & (v.ndim == 0 or not scalar))


def number(default: object = _REQUIRED) -> Field:
    """A leaf: a number or an array, infinities allowed."""
    return _leaf(default, "a number that is not NaN", lambda v: ~np.isnan(v))


def seed(default: object = _REQUIRED) -> Field:
    """A leaf: a whole number from 0 to 2**32 - 1, kept as an integer, since a float32 cannot hold every one of them."""

    def check(value: Any) -> Checked:
        if isinstance(value, Tracer):
            return value, None
        whole = is_int(value) or (isinstance(value, (float, np.floating)) and value % 1 == 0)
        fits = whole and 0 <= value < 2**32
        return (np.uint32(value) if fits else value), None if fits else "a whole number from 0 to 2**32 - 1"

    return _field(default, check, static=False)


def optional(field: Field, default: object = None) -> Field:
    """A field that may also be None, which then stands for the default that the class documents."""
    check = field.metadata["check"]
    return _field(default, lambda value: (None, None) if value is None else check(value), field.metadata["static"])


def count(default: object = _REQUIRED) -> Field:
    """Static: a whole number >= 1."""
    return _static(default, "a whole number >= 1", lambda v: is_int(v) and v >= 1, int)


def index(default: object = _REQUIRED) -> Field:
    """Static: a whole number >= 0."""
    return _static(default, "a whole number >= 0", lambda v: is_int(v) and v >= 0, int)


def labels(default: object = _REQUIRED) -> Field:
    """Static: a sequence of whole numbers, kept as a tuple."""

    def check(value: object) -> Checked:
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            return value, "a sequence of whole numbers, none of them masked"
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1 and value.size:
            return tuple(value.tolist()), None  # of a million coefficients, say: no test of each
        values = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(values, (list, tuple)) and values and all(map(is_int, values)):
            return tuple(map(int, values)), None
        return value, "a sequence of whole numbers"

    return _field(default, check, static=True)


def choice(*options: str, default: object = _REQUIRED) -> Field:
    """Static: one of a few words."""
    requirement = "one of " + ", ".join(map(repr, options))
    return _static(default, requirement, lambda v: isinstance(v, str) and v in options, str)


def truth(default: object = _REQUIRED) -> Field:
    """Static: True, False, or None where nobody knows."""
    return _static(default, "True, False or None", lambda v: v is None or isinstance(v, bool), lambda v: v)


def part(default: object = _REQUIRED, convert: Callable[..., object] | None = None) -> Field:
    """A leaf that is itself a record (a schedule, a momentum rule), or a tuple of records; `convert` may refuse others."""
    return _field(default, lambda value: (value if convert is None else convert(value), None), static=False)


def fixed(default: object = _REQUIRED) -> Field:
    """Static: an object that shapes the program and is compared by `==` and `hash` (a function, by identity)."""
    return _field(default, lambda value: (value, None), static=True)


# --- the decorator ---


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(positive, nonnegative, number, seed, optional, count, index, labels, choice, part, fixed),
)
def record(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass, checked when built, registered as a pytree."""
    cls.__post_init__ = _check_fields  # pyright: ignore[reportAttributeAccessIssue]  # added on purpose
    frozen = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)  # pyright: ignore[reportArgumentType]  # a dataclass since the line above
    for f in fields:
        if "check" not in f.metadata:
            default = "" if f.default is dataclasses.MISSING else f"default={f.default!r}"
            raise InputError(
                f"{cls.__name__}.{f.name} does not say what it accepts. Write {f.name}: ... = positive({default}), or another of "
                "nonnegative, number, seed (numbers that may change without compiling anew), count, index, labels, choice, "
                f"fixed (what shapes the program), part (a record); for a fact of the class, leave the annotation out: {f.name} = ..."
            )
    leaves = [f.name for f in fields if not f.metadata["static"]]
    static = [f.name for f in fields if f.metadata["static"]]

    def unflatten(static_values: tuple[object, ...], values: Iterable[object]) -> object:
        # JAX rebuilds trees with placeholders in the leaves (axes of vmap, None, ...): these must not be checked
        new = object.__new__(frozen)
        vars(new).update(zip([*leaves, *static], [*values, *static_values], strict=True))
        return new

    def flatten(self: object) -> tuple[list[tuple[object, object]], tuple[object, ...]]:
        keyed = [(GetAttrKey(name), getattr(self, name)) for name in leaves]
        return keyed, tuple(getattr(self, name) for name in static)

    jax.tree_util.register_pytree_with_keys(frozen, flatten, unflatten)
    return frozen


def _check_fields(self: Any) -> None:
    """`__post_init__` of a record: check and convert each field, then call the class's own check()."""
    for f in dataclasses.fields(self):
        given = getattr(self, f.name)
        try:
            value, requirement = f.metadata["check"](given)
        except InputError as error:
            raise InputError(f"{type(self).__name__}({f.name}={given!r}): {error}") from None
        if requirement is not None:
            raise InputError(f"{type(self).__name__}({f.name}={value!r}): {f.name} must be {requirement}.")
        object.__setattr__(self, f.name, value)
    if hasattr(self, "check"):  # a condition between fields
        self.check()


def is_record(cls: object) -> bool:
    """Whether a class was made with `record`, so that its constructor checks every field."""
    return isinstance(cls, type) and dataclasses.is_dataclass(cls) and vars(cls).get("__post_init__") is _check_fields


# --- values of a record ---


def describe(value: Any) -> Any:
    """The record as plain data, for provenance: {"name": class, field: value, ...}."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"name": type(value).__name__, **fields}
    if isinstance(value, (np.ndarray, np.number, jax.Array)):
        return np.asarray(value).tolist()
    if isinstance(value, (tuple, list)):
        whole = all(type(item) is int for item in value)  # labels of many coefficients
        return list(value) if whole else [describe(item) for item in value]
    plain = value is None or isinstance(value, (str, bool, int, float, dict))
    return value if plain else getattr(value, "__name__", type(value).__name__)


def leaf_names(value: Any) -> list[str]:
    """Names of the numbers in a record, nested ones dotted: ["eta", "schedule.gamma", "parts.0.lam"]."""
    if isinstance(value, tuple):
        inside = [(str(i), item) for i, item in enumerate(value)]
    elif not dataclasses.is_dataclass(value):
        raise InputError(f"{type(value).__name__} is not a record, so it has no named numbers. Put @record above it.")
    else:
        inside = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if not f.metadata["static"]]
    names = []
    for name, inner in inside:
        nested = dataclasses.is_dataclass(inner) or isinstance(inner, tuple)
        names += [f"{name}.{sub}" for sub in leaf_names(inner)] if nested else [name]
    return names


def has_leaf(value: object, name: str) -> bool:
    """Whether a record has a number of this name."""
    return name in leaf_names(value)


def with_leaf(value: Any, name: str, new: object) -> Any:
    """A copy of the record with one number changed and checked."""
    head, _, tail = name.partition(".")
    if isinstance(value, tuple):
        return tuple(with_leaf(item, tail, new) if i == int(head) else item for i, item in enumerate(value))
    return dataclasses.replace(value, **{head: with_leaf(getattr(value, head), tail, new) if tail else new})


def leaves_as_bytes(value: object) -> tuple[bytes, ...]:
    """The numbers of a record as bytes, to compare two records of one structure."""
    return tuple(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(value))

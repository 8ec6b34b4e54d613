"""The registry of algorithms: `find` looks one up by its name, `register` adds one."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, TypeVar

from compfed._utils.records import is_record
from compfed.algorithms.accelerated_decoupled_prox import AcceleratedDecoupledProx
from compfed.algorithms.base import Algorithm
from compfed.algorithms.compressed_decoupled_prox import CompressedDecoupledProx
from compfed.algorithms.coupled_control_variates import CoupledControlVariates
from compfed.algorithms.dane import DANE
from compfed.algorithms.decoupled_prox import DecoupledProx
from compfed.algorithms.fast_fedda import FastFedDA
from compfed.algorithms.fedadmm import FedADMM
from compfed.algorithms.fedavg import FedAvg
from compfed.algorithms.fedda import FedDA
from compfed.algorithms.feddr import FedDR
from compfed.algorithms.feddyn import FedDyn
from compfed.algorithms.fedmid import FedMid
from compfed.algorithms.fednl import FedNL
from compfed.algorithms.fedpd import FedPD
from compfed.algorithms.fedplt import FedPLT
from compfed.algorithms.fedprox import FedProx
from compfed.algorithms.fedsplit import FedSplit
from compfed.algorithms.fista import FISTA
from compfed.algorithms.mime import Mime, MimeLite
from compfed.algorithms.naive_coupled import NaiveCoupled
from compfed.algorithms.normal_map import NormalMap
from compfed.algorithms.prox_giant import ProxGIANT
from compfed.algorithms.proximal_gradient import ProximalGradient
from compfed.algorithms.scaffnew import Scaffnew
from compfed.algorithms.scaffold import Scaffold
from compfed.algorithms.sdane import SDANE
from compfed.algorithms.server_prox import ServerProx
from compfed.algorithms.variance_reduced_decoupled_prox import VarianceReducedDecoupledProx
from compfed.errors import InputError

if TYPE_CHECKING:
    pass

__all__ = [
    "ALGORITHMS", "DANE", "FISTA", "SDANE", "AcceleratedDecoupledProx", "CompressedDecoupledProx", "CoupledControlVariates",
    "DecoupledProx", "FastFedDA", "FedADMM", "FedAvg", "FedDA", "FedDR", "FedDyn", "FedMid", "FedNL", "FedPD", "FedPLT", "FedProx",
    "FedSplit", "Mime", "MimeLite", "NaiveCoupled", "NormalMap", "ProxGIANT", "ProximalGradient", "Scaffnew", "Scaffold",
    "ServerProx", "VarianceReducedDecoupledProx", "find", "known", "register",
]  # fmt: skip

# The order of the table: the paper and what it compares with, what it cites, what lies beyond.
ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.__name__: cls
    for cls in (
        DecoupledProx, FedMid, FedDA, FastFedDA, ProximalGradient, FISTA,
        FedAvg, FedProx, Scaffold, Mime, MimeLite, FedSplit, FedPD, FedDR, FedADMM, FedDyn, NaiveCoupled,
        CoupledControlVariates, Scaffnew, FedPLT, NormalMap, ServerProx, CompressedDecoupledProx, AcceleratedDecoupledProx,
        VarianceReducedDecoupledProx, DANE, SDANE, ProxGIANT, FedNL,
    )
}  # fmt: skip


_REGISTERED: dict[str, type[Algorithm]] = {}  # methods from outside this package
A = TypeVar("A", bound=Algorithm)


def register(cls: type[A]) -> type[A]:
    """Register a method of your own, so that it can be called by its class name.

    It then takes part in `find`, `default_steps`, `cf.solve_federated`, `cf.compare_methods` and the table of algorithms. Use it
    as a class decorator above `record`, or call it once.

    Parameters
    ----------
    cls : class
        A subclass of `compfed.algorithms.Algorithm`.

    Returns
    -------
    class
        `cls` itself.

    Raises
    ------
    InputError
        `cls` is not such a class, or another method has its name.

    Examples
    --------
    >>> import compfed as cf
    >>> class Mine(cf.algorithms.Algorithm): ...  # doctest: +SKIP
    >>> cf.register(Mine) is Mine  # doctest: +SKIP
    True
    >>> cf.algorithms.find("mine") is Mine  # doctest: +SKIP
    True
    """
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise InputError(f"register takes a class that inherits from compfed.algorithms.Algorithm; got {cls!r}.")
    taken = known().get(cls.__name__)
    # A file that is read again (in a notebook, or as a module and as __main__) does not define a second method.
    if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InputError(
            f"there already is a method {cls.__name__!r}, in {taken.__module__}; give the class in {cls.__module__} "
            "another name."
        )
    _REGISTERED[cls.__name__] = cls
    return cls


def known() -> dict[str, type[Algorithm]]:
    """All methods by name: those of this package, then the registered ones."""
    return ALGORITHMS | _REGISTERED


def find(name: str) -> type[Algorithm]:
    """The class of the algorithm called `name`, whatever the case, '-' and '_'; "module:Class" is imported."""
    if ":" in name:
        return _imported(name)
    plain = {listed.lower(): cls for listed, cls in known().items()}
    asked = name.lower().replace("-", "").replace("_", "")
    if asked in plain:
        return plain[asked]
    near = difflib.get_close_matches(asked, plain, n=1, cutoff=0.0)[0]
    raise InputError(
        f"there is no algorithm {name!r}; the nearest is {plain[near].__name__!r}. Known: {', '.join(known())}. A method of "
        "your own is found once it is registered (cf.register), or as 'module:Class'."
    )


def _imported(address: str) -> type[Algorithm]:
    module, _, name = address.partition(":")
    if module.endswith(".py"):
        raise InputError(f"{address!r}: give the name of a module, not of a file: '{module[:-3]}:{name}'.")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        where = "" if error.name == module else f" (while importing {module})"
        raise InputError(
            f"{address!r}: there is no module {error.name!r}{where}. Run from its folder, or put that on PYTHONPATH."
        ) from error
    except Exception as error:
        raise InputError(f"{address!r}: importing {module} failed with {type(error).__name__}: {error}") from error
    cls = getattr(found, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        methods = ", ".join(n for n, v in vars(found).items() if is_record(v) and issubclass(v, Algorithm)) or "none"
        raise InputError(f"{address!r}: module {module} has no algorithm {name!r}; its algorithms: {methods}.")
    return cls

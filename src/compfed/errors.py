"""The errors and warnings of compfed, each with a message that a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compfed.trace import Trace


class InputError(ValueError):
    """Something the caller gave cannot be used: the message names the value, the requirement and the way out."""


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message says what to install."""

    def __init__(self, module: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs {module}, which is not installed. Run: pip install 'compfed[{extra}]'")


class StepSizeWarning(UserWarning):
    """A step proved too long and was halved; the run went on."""


class RunWarning(UserWarning):
    """A run is prepared that may not be what was meant; the message says why, and the way out."""


class Divergence(ArithmeticError):
    """A run produced a model that is not finite. `trace` holds every round recorded before that."""

    def __init__(self, message: str, trace: Trace):
        super().__init__(message)
        self.trace = trace


class UnknownArgument(InputError, TypeError):
    """An argument that a call does not take; the message names the one that was probably meant."""


class OneSiteWarning(UserWarning):
    """`fit` was not told of sites, so all rows were taken for those of one; `sites=None` says that this is meant."""


class NotUniqueWarning(UserWarning):
    """Other coefficients reach the same objective: those given are one choice of many."""

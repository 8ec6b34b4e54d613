"""The errors and warnings of compfed, each with a message that a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compfed.trace import Trace


class InputError(ValueError):
    """An argument cannot be used: the message names the value, the requirement and the way out.

    Examples
    --------
    >>> import compfed as cf
    >>> try:
    ...     cf.FederatedLasso(alpha=-1.0).fit([[0.0], [1.0]], [0.0, 1.0], sites=None)
    ... except cf.InputError as error:
    ...     print(error)
    FederatedLasso: alpha=-1.0 must be a finite number >= 0.
    """


class UnknownArgument(InputError, TypeError):
    """A call was given an argument that it does not have; the message names the one that was probably meant."""


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message gives the command that installs it.

    Parameters
    ----------
    module : str
        The package that is missing.
    extra : str
        The extra of compfed that brings it.
    purpose : str
        What needs it: the beginning of the message.
    """

    def __init__(self, module: str, extra: str, purpose: str):
        super().__init__(
            f"{purpose} needs {module}, which is not installed. In a clone of compfed, run: pip install '.[{extra}]'"
        )


class ForkError(RuntimeError):
    """This process was forked after JAX had started in its parent, so that a computation would hang."""

    def __init__(self) -> None:
        super().__init__(
            "this process was forked after JAX had started in its parent, and JAX's threads do not survive a fork: the "
            "computation would hang. Start processes with multiprocessing.get_context('spawn'), or with joblib's default "
            "'loky', or fork before the first computation."
        )


class Divergence(ArithmeticError):
    """A run produced a model that is not finite.

    Attributes
    ----------
    trace : Trace
        All rounds recorded before that.
    """

    def __init__(self, message: str, trace: Trace):
        super().__init__(message)
        self.trace = trace


class StepSizeWarning(UserWarning):
    """A step size was too long and was halved; the run went on."""


class RunWarning(UserWarning):
    """A run may not be what was meant; the message says why, and names the way out."""


class OneSiteWarning(UserWarning):
    """``fit`` got no ``sites``, so all rows were fitted as those of one site; ``sites=None`` says that this is meant."""


class LeftOutWarning(UserWarning):
    """``schema="auto"`` left columns out: dates, identifiers, names or free text. The message says how to use them."""


class ClassesDifferWarning(UserWarning):
    """Every site has two classes, and together they have more: the same classes may be written differently."""


class NotUniqueWarning(UserWarning):
    """Other coefficients reach the same objective: those returned are one choice of many."""


class EdgeOfGridWarning(UserWarning):
    """Cross-validation chose the smallest or the largest alpha it tried, and another one beyond may predict better."""

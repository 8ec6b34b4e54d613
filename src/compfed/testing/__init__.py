"""`check`: try a method, a penalty or a loss of one's own on small problems, and compare it with what it claims."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

import compfed.algorithms as alg
from compfed.errors import InputError
from compfed.testing.losses import check_loss
from compfed.testing.methods import check_method
from compfed.testing.penalties import check_penalty
from compfed.testing.report import Checked, CheckLine

__all__ = ["CheckLine", "Checked", "check"]


def check(
    what: Any,
    X: npt.ArrayLike | None = None,
    y: npt.ArrayLike | None = None,
    *,
    d: int | None = None,
    quiet: bool = False,
) -> Checked:
    """Compare a method, a penalty or a loss with its claims.

    Of a **method**: its contract; that it runs alike compiled and message by message, with mini-batches and with some of the
    clients; its limit, with all clients and with some; the precision of its numbers; and its costs, against a plain Python loop
    that counts every call. Of a **penalty**: the inequality that its prox must satisfy, convexity, or weak convexity with the
    modulus that its `largest_step` states, and `alpha_max`. Of a **loss**: gradient and Hessian against differences, convexity, and
    the bound on its curvature.

    Parameters
    ----------
    what : class or instance of Algorithm, penalty or loss
        A class of algorithms must have a rule for its steps (`from_bounds`). Penalties and losses are instances.
    X, y : arrays, optional
        Rows and labels to try a loss with; made up unless given. A loss from `from_function` needs them.
    d : int, optional
        Coefficients to try a penalty with: as many as it takes, or 12.
    quiet : bool, default=False
        Do not print the report, only return it.

    Returns
    -------
    Checked
        The report that was printed: do not print it once more. `ok` says whether every claim holds, `lines` what was found for
        each. A claim that fails raises nothing.

    Raises
    ------
    InputError
        `what` is something else, or the made-up rows do not suit the loss.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.testing.check(cf.algorithms.FISTA, quiet=True).ok
    True
    >>> print(cf.testing.check(cf.regularisers.L1(0.1), quiet=True).lines[0])
    prox inequality: holds
    """
    if isinstance(what, alg.Algorithm) or (isinstance(what, type) and issubclass(what, alg.Algorithm)):
        report = check_method(what)
    elif hasattr(what, "prox") and callable(what) and not isinstance(what, type):
        report = check_penalty(what, d)
    elif hasattr(what, "values") and hasattr(what, "gradient") and not isinstance(what, type):
        report = check_loss(what, X, y)
    else:
        raise InputError(
            f"check takes a class of algorithms, or an instance of one, of a penalty or of a loss; got {what!r:.80}."
        )
    if not quiet:
        print(report)
    return report

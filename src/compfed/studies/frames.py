"""`to_frame`: many traces as one table of pandas, a row per run and recorded round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from compfed.errors import InputError, MissingExtra
from compfed.report.figures import runs_by_name
from compfed.trace import Trace

if TYPE_CHECKING:
    import pandas


def to_frame(traces: Any) -> pandas.DataFrame:
    """Many traces as one DataFrame: a row per run and recorded round, the settings of the run beside its columns.

    Parameters
    ----------
    traces : Trace, sequence of Trace, dict, or result of `compare_methods`
        Such as the list that `grid` returns; a dict has names, with one trace or several under each.

    Returns
    -------
    pandas.DataFrame
        Columns "run" (the name, or the number in the list), "method", "seed", the values of a grid, and those of the traces. A
        column that some of the runs lack is missing there.

    Raises
    ------
    InputError
        If there is no trace.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> traces = cf.grid(problem, cf.algorithms.FedDA(eta=1.0), 5, {"eta": [0.5, 1.0], "seed": [0, 1]})
    >>> frame = cf.to_frame(traces)
    >>> frame.groupby(["eta", "round"])["objective"].median().shape
    (12,)
    """
    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "pandas", "to_frame") from None
    parts = []
    for name, trace in _named(traces):
        provenance = trace.provenance
        method = provenance.get("algorithm", {}).get("name") if isinstance(provenance.get("algorithm"), dict) else None
        values = trace.to_pandas().reset_index()
        settings = {"run": name, "method": method, "seed": provenance.get("seed"), **provenance.get("grid", {})}
        settings = {k: v for k, v in settings.items() if k not in values.columns}
        parts.append(pandas.concat([pandas.DataFrame(settings, index=values.index), values], axis=1))
    return pandas.concat(parts, ignore_index=True)


def _named(traces: Any) -> Iterable[tuple[Any, Trace]]:
    """Each trace with the name of its run."""
    if isinstance(traces, Trace):
        return [(0, traces)]
    if isinstance(traces, Iterable) and not isinstance(traces, (Mapping, str)):
        listed = list(traces)
        if not listed or not all(isinstance(trace, Trace) for trace in listed):
            raise InputError(f"to_frame takes traces; got a list of {len(listed)} entries that are not all traces.")
        return list(enumerate(listed))
    return [(name, trace) for name, each in runs_by_name(traces, "to_frame").items() for trace in each]

"""Messages of the library in the words of the command line: an argument becomes the option of that name."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator

from compfed.errors import InputError, LeftOutWarning

OPTIONS = (
    "alpha|dates|decimal|drop|encoding|features|keep|label|l1_ratio|missing|offset|penalty_factors|positive_class|schema|sep|site|"
    "weight"
)


@contextlib.contextmanager
def as_options() -> Iterator[None]:
    """Errors that name an argument of the library name the option instead, as warnings of every command do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOutWarning)  # which the command prints among its notes
        try:
            yield
        except InputError as problem:
            raise InputError(option_text(str(problem))) from None


def option_text(text: str) -> str:
    """A message of the library in the words of the command line.

    >>> option_text("Leave it out with drop='note', or name the columns with features=.")
    "Leave it out with --drop 'note', or name the columns with --features."
    """
    text = re.sub(r"dates=\{'([^']*)': '([^']*)'\}", r"--dates '\1=\2'", text)
    text = text.replace("unlabelled='drop'", "--drop-unlabelled")
    text = re.sub(rf"(?<![\w\[])({OPTIONS})=(?=['\"\[\w+-])", lambda found: f"--{found[1].replace('_', '-')} ", text)
    text = re.sub(rf"(?<![\w\[])({OPTIONS})=(?=\W)", lambda found: f"--{found[1].replace('_', '-')}", text)
    text = re.sub(r"\bcv=(?=\d)", "--folds ", text)
    return text.replace("Take FederatedLogisticRegression", "Take --model logistic")

"""The sums that server programs receive, where they have another form than the reply of one site."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compfed._utils.arrays import Pair
from compfed.site_summary import SiteFacts


class Description(NamedTuple):
    """The sum of the replies to `Describe`."""

    rows: np.ndarray  # of each site; of a subset, over a network, each site's part is estimated from the total
    weights: np.ndarray  # of each site's rows, likewise
    weight: float  # of all rows
    sites: int  # that have any of them
    widths: tuple[int, ...]
    columns: tuple[tuple[str, ...] | None, ...]
    label_kinds: tuple[str, ...]  # NumPy's letter for the type of each site's labels
    label_shapes: tuple[tuple[int, ...], ...]
    classes: np.ndarray  # of all sites
    class_weights: np.ndarray  # sum over the rows
    class_shares: np.ndarray  # sum over the sites of the shares within each
    label_sum: np.ndarray | None  # sum over the rows; None where labels are classes, or differ in shape
    label_means: np.ndarray | None  # sum over the sites of their means
    facts: SiteFacts | None  # of a single site
    site_classes: tuple[np.ndarray | None, ...] = ()  # of each site that lists them


class MomentsSum(NamedTuple):
    """The sum of the replies to `Moments`, as pairs of doubles.

    The weight is a pair too: its rounding error, times the square of a large mean, would be the whole variance.
    """

    weight: Pair
    mean: Pair
    square: Pair


class HeldOutSum(NamedTuple):
    """The sum of the replies to `HeldOut`."""

    weight: float  # of all rows held out
    loss: np.ndarray  # (models,): sum over these rows
    sites: int  # that hold out any row
    means: np.ndarray  # (models,): sum over these sites of their mean losses


class UpdateSum(NamedTuple):
    """The weighted sum of the updates of a round, in dense form."""

    u: object  # a tree of arrays
    not_finite: tuple[str, ...]  # sites whose update or client state has a number that is not finite

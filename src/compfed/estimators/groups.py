"""Least squares with a penalty on whole groups of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compfed._utils.text import join_names, shorten
from compfed._utils.validation import check_numbers, check_unmasked, is_int
from compfed.data.columns import as_row_labels
from compfed.errors import InputError
from compfed.estimators.base import estimator, first
from compfed.estimators.linear import Regressor
from compfed.estimators.programs.fit import Family
from compfed.losses import Squared
from compfed.regularisers import GroupL2


@dataclass(frozen=True)
class Grouped(Family):
    groups: Any
    group_weights: Any
    names: tuple[str, ...] = ()

    def with_columns(self, names):
        self._check_numbers(list(names or ()))
        return replace(self, names=names or ())

    def _check_numbers(self, names: list[str]) -> None:
        """Refuse a number of a feature that is the name of another one: columns may be called 0, 1, 2."""
        index: Any = getattr(self.groups, "index", None)
        if hasattr(index, "tolist"):  # a Series of pandas
            pairs = list(enumerate(index.tolist()))
        elif isinstance(self.groups, (list, tuple, np.ndarray)) and np.ndim(np.asarray(self.groups, object)):
            listed = [group for group in self.groups if isinstance(group, (list, tuple, np.ndarray))]
            pairs = [(entry, entry) for group in listed for entry in group]
        else:
            return
        for place, entry in pairs:
            if is_int(entry) and str(entry) in names and names.index(str(entry)) != place:
                raise InputError(
                    f"groups speaks of feature {entry}, which may be the column called {entry} (number "
                    f"{names.index(str(entry))}) or column number {entry}. Give X.rename(columns=str) and names as text, "
                    f"'{entry}', to match by name; give X.to_numpy() to match by place."
                )

    def loss(self, labels):
        return Squared()

    def members(self, width: int) -> np.ndarray:
        """The number of each feature's group."""
        if self.groups is None:
            return np.arange(width)
        labels = self._listed()
        if labels and all(isinstance(group, (list, tuple, np.ndarray)) for group in labels):
            names = list(self.names)
            listed = [names.index(entry) if entry in names else entry for group in labels for entry in group]
            if not all(map(is_int, listed)) or sorted(listed) != list(range(width)):
                raise InputError(
                    f"groups={self.groups!r} must list each of the {width} features exactly once, by position 0..{width - 1}"
                    + (f" or by name: {', '.join(names)}." if names else ".")
                )
            where = np.empty(width, int)
            where[listed] = np.repeat(np.arange(len(labels)), [len(group) for group in labels])
            return where
        if len(labels) != width:
            raise InputError(f"groups has {len(labels)} labels; X has {width} features: give one label per feature.")
        labels = as_row_labels("groups: a label for every feature is needed, or lists of features", labels)
        return np.unique(labels, return_inverse=True)[1]

    def _listed(self) -> list[Any]:
        """`groups` as a list, if it has an order that says which feature is meant."""
        given, names = self.groups, list(self.names)
        if isinstance(given, Mapping):
            raise InputError(
                f"groups={shorten(repr(given), 80)} may say the group of each feature, or the features of each group. Give "
                "[groups[name] for name in X.columns] for the first, list(groups.values()) for the second."
            )
        index: Any = getattr(given, "index", None)
        series = hasattr(index, "tolist")
        if series and index.tolist() not in (names, list(range(len(given)))):  # a Series of pandas
            raise InputError(
                f"groups is a Series with the index {join_names([repr(i) for i in index])}, which is not that of the columns in "
                "their order. Give groups[X.columns].tolist() to match by name, groups.tolist() to match by place."
            )
        check_unmasked(given, "groups")
        kinds = (list, tuple, np.ndarray)
        if not (isinstance(given, kinds) and np.ndim(np.asarray(given, object))) and not series:
            raise InputError(
                f"groups={shorten(repr(given), 80)} must be a list: one label per feature, or lists of features."
            )
        listed = list(given)
        if len({isinstance(entry, kinds) for entry in listed}) > 1:
            raise InputError(
                f"groups={shorten(repr(given), 80)} has both lists and single entries. Give one label per feature, or a list "
                "of features for every group, groups of one included: [['a'], ['b', 'c']]."
            )
        return listed

    def column_scale(self, scale, standardize):
        # the norm of a group is the same in all directions, so a group has one scale
        member = self.members(scale.size)
        if standardize:
            return scale
        return np.sqrt(np.bincount(member, scale**2) / np.bincount(member))[member]

    def penalty(self, alpha, scale, outputs):
        member = self.members(scale.size)
        sizes = np.bincount(member)
        weights = np.sqrt(sizes) if self.group_weights is None else check_numbers(self.group_weights, "group_weights")
        if weights.shape != sizes.shape or not (np.isfinite(weights) & (weights >= 0)).all():
            raise InputError(
                f"group_weights={self.group_weights!r} must be {sizes.size} finite numbers >= 0, one for each group."
            )
        first_of = np.unique(member, return_index=True)[1]
        groups: Any = member
        return GroupL2(lam=alpha, groups=groups, weights=weights / scale[first_of])


@estimator
class GroupLassoModel(Regressor):
    """The group lasso, whatever its alpha."""

    groups: Any = None
    group_weights: Any = None

    def family(self) -> Family:
        return Grouped(self.groups, self.group_weights)


@estimator
class FederatedGroupLasso(GroupLassoModel):
    """min_{w, b} 1/(2n) ||y - X w - b||^2 + alpha sum_g weight_g ||w_g||, over sites: whole groups are zero or not.

    - `groups`: one label per feature (any values; equal labels form a group), a list of lists of feature positions or
      of names of a DataFrame's columns, or None for a group per feature, which is the lasso.
    - `group_weights`: one per group in the order of the sorted labels; the square root of its size unless given.

    Other parameters as in FederatedLasso.
    """

    alpha: float = first(default=1.0)

"""What clients remember, for the few of many that ever took part: fetched before a round, written back after it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

ELSE = -1  # stands for everybody who has not taken part


class Memories:
    """One row per client that took part, in the order of their first rounds; the others are as at the start.

    Memory grows with the clients seen, not with n but for one number each.
    """

    def __init__(self, n: int, first: Any, of: np.ndarray | None = None, leaves: list[np.ndarray] | None = None):
        """`first` is what everybody remembers at the start; `of` and `leaves` are what `saved` returned."""
        blank, self.structure = jax.tree.flatten(first)
        self.blank = [np.asarray(leaf) for leaf in blank] if leaves is None else [leaf[-1] for leaf in leaves]
        self.seen = np.zeros(0, np.int32) if of is None else of[:-1].astype(np.int32)
        self.used = len(self.seen)
        self.rows = [leaf[None] for leaf in self.blank] if leaves is None else [np.array(leaf) for leaf in leaves]
        self.place = np.full(n if self.blank else 0, -1, np.int32)
        if self.blank:
            self.place[self.seen] = np.arange(self.used)

    def fetch(self, who: np.ndarray) -> Any:
        """The memories of some clients, stacked."""
        if self.blank:
            self._welcome(who[self.place[who] < 0])
        return jax.tree.unflatten(self.structure, [rows[self.place[who]] for rows in self.rows])

    def keep(self, who: np.ndarray, memories: Any) -> None:
        """What they remember from now on."""
        for rows, leaf in zip(self.rows, jax.tree.leaves(memories), strict=True):
            rows[self.place[who]] = np.asarray(leaf)

    def saved(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Whose rows they are, and the rows; the last one is everybody else's."""
        leaves = [
            np.concatenate([rows[: self.used], blank[None]]) for rows, blank in zip(self.rows, self.blank, strict=True)
        ]
        return np.append(self.seen[: self.used], ELSE), leaves

    def _welcome(self, new: np.ndarray) -> None:
        last, self.used = self.used, self.used + len(new)
        if self.used > len(self.seen):
            room = max(2 * len(self.seen), self.used)
            self.seen = _longer(self.seen, room)
            self.rows = [_longer(rows, room) for rows in self.rows]
        self.seen[last : self.used] = new
        self.place[new] = np.arange(last, self.used)
        for rows, blank in zip(self.rows, self.blank, strict=True):
            rows[last : self.used] = blank


def _longer(rows: np.ndarray, room: int) -> np.ndarray:
    longer = np.empty((room, *rows.shape[1:]), rows.dtype)
    longer[: min(len(rows), room)] = rows[:room]
    return longer

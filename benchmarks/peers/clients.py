"""What the peers share: the rows, and a client's tau local steps of Algorithm 1 in NumPy. Imports NumPy alone."""

from __future__ import annotations

import json
import os
import time

import numpy as np

ETA, TAU, LAM, RIDGE = 1.0, 5, 1e-4, 0.01


def rows() -> tuple[np.ndarray, np.ndarray]:
    """(clients, rows, features) and labels -1, 1 of (clients, rows), from the file that the driver wrote."""
    with np.load(os.environ["PEERS_DATA"]) as data:
        return data["A"], data["y"]


def soft(v: np.ndarray, t: float) -> np.ndarray:
    return np.sign(v) * np.maximum(np.abs(v) - t * LAM, 0.0)


def local_steps(x: np.ndarray, before: tuple, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, tuple]:
    """A client's round: what it sends, and what it remembers, which is (p, S) of its last round, or ()."""
    p = soft(x, ETA * TAU)
    c = (before[0] - x) / (ETA * TAU) - before[1] / TAU if before else np.zeros_like(x)
    z_hat, z, S = p, p, np.zeros_like(x)
    for t in range(TAU):
        q = a.T @ (-b / (1.0 + np.exp(b * (a @ z)))) / len(a) + RIDGE * z
        S = S + q
        z_hat = z_hat - ETA * (q + c)
        z = soft(z_hat, (t + 1) * ETA)
    return p - ETA * S, (p, S)


class Clock:
    """Times of rounds; the first few are left out, when nothing is warm."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def mark(self) -> None:
        self.marks.append(time.perf_counter())

    def report(self, name: str, version: str, x: np.ndarray | None = None, note: str = "") -> None:
        took = np.diff(self.marks)[2:]
        said = {"name": name, "version": version, "mean": float(took.mean()), "best": float(took.min())}
        print(json.dumps({**said, "rounds": len(took), "x": None if x is None else x.tolist(), "note": note}))


def rounds() -> int:
    return int(os.environ.get("PEERS_ROUNDS", "20")) + 3

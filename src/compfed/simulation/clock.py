"""The clock of a cost model: simulated seconds of rounds, in which the server waits for the slowest participant.

An exchange takes client i

    latency + (bytes down) / bandwidth_down + (bytes up) / bandwidth_up + (rows read) * row      seconds, each divided by s_i

and the server the longest of these over the participants. Bytes and rows are those that a trace counts. s_i is the speed of the
client: 1, or drawn once for each client from (seed, number of the client). Nothing sleeps, and the server's own work takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compfed._utils.validation import check_int, check_numbers
from compfed.errors import InputError
from compfed.monitor import ClientSeconds


@dataclass(frozen=True)
class CostModel:
    """What a round costs a client in simulated seconds.

    Parameters
    ----------
    latency : float or array of shape (n,)
        Seconds of a round trip without its bytes and its work.
    bandwidth_down, bandwidth_up : float or array of shape (n,)
        Bytes a second to and from a client.
    row : float or array of shape (n,)
        Seconds for each row that a gradient, a value, a Hessian or a Hessian-vector product reads.
    spread : float, default=0.0
        Standard deviation of the logarithm of the clients' speeds.
    seed : int, default=0
        Seed of these speeds.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> model = cf.simulation.CostModel(latency=1.0, bandwidth_down=32.0, bandwidth_up=16.0, row=0.01)
    >>> trace = cf.simulate(problem, cf.algorithms.FISTA(eta=0.5), 2, clock=model)  # 20 rows, 32 bytes down, 32 bytes up
    >>> trace["clock"].tolist()
    [0.0, 4.2, 8.4]
    """

    latency: Any
    bandwidth_down: Any
    bandwidth_up: Any
    row: Any
    spread: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("latency", "bandwidth_down", "bandwidth_up", "row", "spread"):
            value = check_numbers(getattr(self, name), name)
            positive = name.startswith("bandwidth")
            if not (value.ndim <= (name != "spread") and value.size and np.all(value > 0 if positive else value >= 0)):
                raise InputError(
                    f"CostModel({name}={getattr(self, name)!r:.60}): {name} must be numbers {'>' if positive else '>='} 0: "
                    f"one for all clients{'' if name == 'spread' else ', or one for each of them'}."
                )
        check_int(self.seed, "seed", 0)

    def seconds(self, sizes: np.ndarray, numbers: Any) -> ClientSeconds:
        """The seconds of each of the clients, which have these numbers."""
        n = len(sizes)
        found = {}
        for name in ("latency", "bandwidth_down", "bandwidth_up", "row"):
            value = np.asarray(getattr(self, name), float)
            if value.ndim and value.shape != (n,):
                raise InputError(
                    f"clock: {name} has {len(value)} numbers, and there are {n} clients; give one for each."
                )
            found[name] = np.broadcast_to(value, n)
        speed = np.ones(n)
        if self.spread > 0:  # a draw of its own for each client: a subset of them has the same speeds
            draws = [np.random.default_rng([self.seed, int(number)]).standard_normal() for number in numbers]
            speed = np.exp(self.spread * np.array(draws))
        down, up = 1.0 / found["bandwidth_down"], 1.0 / found["bandwidth_up"]
        return ClientSeconds(*(each / speed for each in (found["latency"], down, up, found["row"])))


# Round numbers for three kinds of federation: rows a second of a small linear model on a server, a laptop and a phone.
PRESETS = {
    "hospital": CostModel(latency=0.1, bandwidth_down=12.5e6, bandwidth_up=12.5e6, row=1e-6, spread=0.3),
    "phone": CostModel(latency=0.5, bandwidth_down=2.5e6, bandwidth_up=0.6e6, row=1e-5, spread=0.7),
    "datacentre": CostModel(latency=1e-3, bandwidth_down=1.25e9, bandwidth_up=1.25e9, row=2e-7),
}


def check_clock(clock: object, sizes: np.ndarray, numbers: Any) -> ClientSeconds | None:
    """The seconds of each client, from a cost model or the name of one."""
    if clock is None:
        return None
    known = ", ".join(map(repr, PRESETS))
    if isinstance(clock, str):
        if clock not in PRESETS:
            raise InputError(
                f"clock={clock!r} is not a known cost model. Use {known}, or a cf.simulation.CostModel(...)."
            )
        clock = PRESETS[clock]
    if not isinstance(clock, CostModel):
        raise InputError(f"clock must be {known} or a cf.simulation.CostModel(...); got {type(clock).__name__}.")
    return clock.seconds(sizes, numbers)

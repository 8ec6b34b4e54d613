"""How long to wait for a reply and how often to resend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a reply and how often to resend.

    Parameters
    ----------
    timeout : float, default=120
        Seconds to wait for a reply before a message is sent again. A site that signs in again gets its message at once.
    attempts : int, default=20
        How often a message is sent before the run stops.
    wait : float, default=600
        Seconds to wait for a site that is not connected before the run stops.
    pause : float, default=1
        Seconds between two checks while nobody can be reached.
    """

    timeout: float = 120.0
    attempts: int = 20
    wait: float = 600.0
    pause: float = 1.0

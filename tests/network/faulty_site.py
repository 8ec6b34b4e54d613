"""`compfed site run` with a fault, as a process of its own: slow, lying, broken, or with a wrong clock.

    python faulty_site.py BEHAVIOUR.json --config site.toml

BEHAVIOUR.json is read again for every message, so that a test can change the fault while the site runs:

    sleep    seconds to wait before a reply
    compute  seconds to compute before a reply
    at       the only message that `sleep` and `compute` are for
    after    the other faults begin after this message
    lie      "nan", "shape", "noise", "replay", "name", "key": what is wrong with the signed reply
    broken   "nan": what is wrong with the sums before the site keeps and signs them
    clock    seconds that the clock of this process is ahead, read once
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from compfed import cli
from compfed.federation.site.site import Site
from compfed.network import flower, keys
from compfed.network.envelope import read_header, read_reply, reply_bytes
from compfed.network.site import SiteService

honest_reply, honest_site_reply = SiteService.reply, Site.reply
earlier: dict[tuple[str, int], bytes] = {}
number = 0


def behaviour() -> dict[str, Any]:
    return json.loads(Path(sys.argv[1]).read_text())


def spoil(reply: Any) -> Any:
    """A reply with NaN in its gradient."""
    if not hasattr(reply, "gradient"):
        return reply
    gradient = np.array(reply.gradient)
    gradient[..., 0] = np.nan
    return reply._replace(gradient=gradient)


def lied(words: np.ndarray, how: str) -> np.ndarray:
    """Other words than those of the site: numbers with a NaN, one too few, or noise."""
    if how == "nan":
        return np.where(np.arange(len(words))[:, None] == 2, np.nan, words.astype(float))
    return words[1:] if how == "shape" else np.random.default_rng(0).integers(0, 2**64, words.shape, np.uint64)


def compute(seconds: float) -> None:
    end, matrix = time.monotonic() + seconds, np.ones((1000, 1000))
    while time.monotonic() < end:
        matrix = matrix @ matrix / 1000


def reply(service: SiteService, data: bytes) -> bytes:
    global number
    now = behaviour()
    header = read_header(data, service.settings.name)[0]
    number = header.number
    if now.get("at", number) == number:
        time.sleep(now.get("sleep", 0.0))
        compute(now.get("compute", 0.0))
    signed = honest_reply(service, data)
    earlier[header.run, number] = signed
    lie = now.get("lie") if number > now.get("after", 0) else None
    if lie is None:
        return signed
    if lie == "replay":
        return earlier[header.run, 2]
    fields = read_reply(signed, service.key.public_key())
    if lie == "key":
        return reply_bytes(fields, keys.new_identity())
    if lie == "name":
        fields["site"] = "clinic-0"
    elif "words" in fields:
        fields["words"] = lied(fields["words"], lie)
    return reply_bytes(fields, service.key)


def site_reply(site: Site, queries: Any) -> Any:
    now, replies = behaviour(), honest_site_reply(site, queries)
    if number > now.get("after", 0) and now.get("broken"):
        return tuple(map(spoil, replies))
    return replies


def set_clock_ahead(seconds: float) -> None:
    """`time.time` and `datetime.now` of compfed and Flower; TLS asks the clock of the machine."""
    system, ahead = time.time, datetime.timedelta(seconds=seconds)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.now(tz) + ahead

    time.time = lambda: system() + seconds
    for name, module in list(sys.modules.items()):
        if name.startswith(("compfed", "flwr")) and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = Clock  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    for cls, name, faulty in ((SiteService, "reply", reply), (Site, "reply", site_reply)):
        setattr(cls, name, faulty)
    if behaviour().get("clock"):
        set_clock_ahead(behaviour()["clock"])
        assert vars(flower)["datetime"] is not datetime.datetime
    sys.exit(cli.main(["site", "run", *sys.argv[2:]]))

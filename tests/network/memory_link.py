"""A link without a network: bytes go to the service of a site in this process, and its bytes come back. For tests only.

Every message finds a site that has just been started: rows are read again, and nothing is known but what is on disk.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from compfed.data import Sites
from compfed.federation import Communication, InProcess
from compfed.federation.codec import from_bytes, unpack
from compfed.network import keys
from compfed.network.envelope import read_reply, reply_bytes
from compfed.network.flower import Reply
from compfed.network.roster import roster_text
from compfed.network.server import RemoteFederation
from compfed.network.settings import RetryPolicy
from compfed.network.site import SiteService
from compfed.network.site_settings import SiteSettings

ANY_SHARE = "share_by_rule = inf\nmax_share = inf"
NOW = RetryPolicy(timeout=0.05, attempts=4, wait=0.2, pause=0.0, approval=2.0)

# (site, the message, what the site would reply) -> the bytes that arrive, None for none, or a Reply that says what went wrong
Meddle = Callable[[str, bytes, Callable[[], bytes]], "bytes | Reply | None"]


class MemoryLink:
    """Sites by name, each with its site.toml."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = {SiteSettings.read(path).name: path for path in paths}
        self.ids = itertools.count(1)
        self.waiting: dict[str, Reply] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.signed_in = dict.fromkeys(self.paths, "1")
        self.meddle: Meddle = lambda name, data, reply: reply()
        self.closed = False

    def service(self, name: str) -> SiteService:
        settings = SiteSettings.read(self.paths[name])
        return SiteService(settings, keys.read_identity(settings.key))

    def open(self) -> None: ...

    def connected(self) -> dict[str, str]:
        return dict(self.signed_in)

    def push(self, messages: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        taken = {}
        for name, data in messages.items():
            taken[name] = f"m{next(self.ids)}"
            self.sent.append((name, data))
            reply = self.meddle(name, data, lambda name=name, data=data: self.service(name).reply(data))
            if reply is not None:
                self.waiting[taken[name]] = reply if isinstance(reply, Reply) else Reply(reply)
        return taken

    def pull(self, ids: Collection[str]) -> dict[str, Reply]:
        return {name: self.waiting.pop(name) for name in list(ids) if name in self.waiting}

    def reset(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def furnish(
    folder: Path,
    sites: Sites,
    more: str = "",
    disclosure: str = "enforce = false",
    *,
    secure_sum: bool = False,
    counted: bool = False,
) -> list[Path]:
    """A folder per site with its rows as CSV, its key and its site.toml; with `secure_sum` also the roster.

    `more` are settings at the top of the file, and tables; `disclosure` is what its [disclosure] says. Tables of tests hold few
    numbers: unless they are to be `counted`, any share of these may leave.
    """
    disclosure = disclosure if counted else f"{disclosure}\n{ANY_SHARE}"
    paths = []
    for A, y, name in zip(sites.features, sites.labels, sites.names, strict=True):
        home = folder / name
        home.mkdir(parents=True)
        outcomes = np.reshape(y, (len(y), -1))
        labels = [f"y{k}" for k in range(outcomes.shape[1])]
        columns = list(sites.columns or (f"a{j}" for j in range(A.shape[1])))
        lines = [",".join([*columns, *labels])]
        lines += [",".join(map(repr, [*row.tolist(), *out.tolist()])) for row, out in zip(A, outcomes, strict=True)]
        (home / "rows.csv").write_text("\n".join(lines) + "\n")
        label = repr(labels) if y.ndim == 2 else repr("y0")
        keys.write_identity(home / "node.key", keys.new_identity())
        path = home / "site.toml"
        head = f'name = "{name}"\ndata = "rows.csv"\nlabel = {label}\nstate = "state"\nsecure_sum = {str(secure_sum).lower()}'
        network = '[approval]\nby_rule = true\n[network]\nsuperlink = "127.0.0.1:1"\nca = "ca.crt"\nkey = "node.key"'
        path.write_text(f"{head}\n{more}\n{network}\n\n[disclosure]\n{disclosure}\n")
        paths.append(path)
    if secure_sum:
        share_roster(paths)
    return paths


def approving(link: MemoryLink) -> MemoryLink:
    """With a person at every site who approves each run that waits there, as soon as it does."""
    others = link.meddle

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes | Reply | None:
        found = others(name, data, reply)
        if isinstance(found, bytes) and b'"pending"' in found:
            approve_all(link.paths[name])
        return found

    link.meddle = meddle
    return link


def approve_all(path: Path) -> None:
    """Approve all runs that wait at a site."""
    approvals = SiteSettings.read(path).approvals()
    for asked in approvals.all():
        if asked.state == "waiting":
            approvals.approve(asked)


def share_roster(paths: Sequence[Path]) -> None:
    """Give all sites the roster of these sites, as the operator does."""
    text = roster_text({SiteSettings.read(path).name: key_of(path).public_key() for path in paths})
    for path in paths:
        (path.parent / "roster.txt").write_text(text)


def exact(paths: Sequence[Path]) -> InProcess:
    """The same sites in this process, with their own policies and secrets."""
    found = [SiteSettings.read(path).site() for path in paths]
    for i, site in enumerate(found):
        site.rows.index = site.rows.number = i
    return InProcess(found, exact=True)


def without_framing(cost: Communication) -> Communication:
    """What a message costs but for names and framing, which one process does not count; what was measured adds up."""
    kinds = {kind: of for kind, of in cost.by_query.items() if kind != "framing"}
    for at, measured in ((1, cost.bytes_down), (2, cost.bytes_up)):
        np.testing.assert_allclose(sum(of[at] for of in cost.by_query.values()), measured, rtol=1e-12)
    down, up = (sum(of[at] for of in kinds.values()) for at in (1, 2))
    return Communication(cost.rounds, down, up, cost.models, kinds)


def assert_whole_messages(trace: Mapping[str, np.ndarray], bodies: np.ndarray) -> None:
    """Between two points of the byte axes are the bodies (down, up) of one or more messages, one after the other."""
    ends = np.cumsum([(0.0, 0.0), *bodies], axis=0)
    sums = (ends[None, :] - ends[:, None])[np.triu_indices(len(ends), 1)]
    steps = np.diff(np.column_stack([trace["bytes_down"], trace["bytes_up"]]), axis=0)
    assert len(steps)
    assert np.abs(sums[:, None] - steps).max(axis=2).min(axis=0).max() < 1e-6


# --- replies that a site did not send ---


def key_of(path: Path) -> ec.EllipticCurvePrivateKey:
    """The identity key of the site whose site.toml this is."""
    return keys.read_identity(path.parent / "node.key")


def fields_of(link: MemoryLink, name: str, data: bytes) -> dict[str, Any]:
    """The fields of a reply of a site."""
    return read_reply(data, key_of(link.paths[name]).public_key())


def signed(link: MemoryLink, name: str, fields: dict[str, Any]) -> bytes:
    """A reply with these fields, signed with the key of a site."""
    return reply_bytes(fields, key_of(link.paths[name]))


def changed_words(link: MemoryLink, name: str, data: bytes, edit: Callable[[np.ndarray], Any]) -> bytes:
    """The reply of a site with other words, signed by the site; a reply without words as it is."""
    fields = fields_of(link, name, data)
    return signed(link, name, {**fields, "words": edit(fields["words"])}) if "words" in fields else data


def number_of(data: bytes) -> int:
    """The number of a message."""
    start = data.index(b"\n") + 5
    return unpack(from_bytes(data[start : start + int.from_bytes(data[start - 4 : start], "little")]))["number"]


def logged(path: Path) -> str:
    """Why a site refused the last message that it refused, from its own log: under a policy the operator reads one sentence."""
    lines = [json.loads(line) for line in (path.parent / "state" / "log.jsonl").read_text().splitlines()]
    return [line["reason"] for line in lines if "reason" in line][-1]


def wipe(path: Path) -> None:
    """A site whose disk was lost; its key and its table were restored from a backup."""
    shutil.rmtree(path.parent / "state")


def remote(paths: Sequence[Path], folder: Path | None = None, **options: Any) -> tuple[RemoteFederation, MemoryLink]:
    link = MemoryLink(paths)
    roster = {name: keys.read_identity(path.parent / "node.key").public_key() for name, path in link.paths.items()}
    given: Any = {"retry": NOW} | options
    carrier: Any = link
    return RemoteFederation(carrier, roster, folder=folder, **given), link

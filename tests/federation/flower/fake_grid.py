"""Flower without its processes: a grid that hands messages to the ClientApp, through Flower's own bytes. For tests only.

Every message finds a site that has just been started: rows are read again, and nothing is remembered but what is on disk.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from compfed.data import Sites
from compfed.federation.flower import Patience, Remote, client_app, site_app

NOW = Patience(timeout=0.0, attempts=4, wait=0.0, pause=0.0, poll=0.0)

# (site, the message, what the site would reply) -> the reply that arrives, or None for none
Meddle = Callable[[int, RecordDict, Callable[[], RecordDict]], Any]


def carried(records: RecordDict) -> RecordDict:
    """What arrives of records that were sent."""
    return recorddict_from_proto(
        type(recorddict_to_proto(records)).FromString(recorddict_to_proto(records).SerializeToString())
    )


class FakeGrid(Grid):
    """Nodes 100, 101, ... with the site.toml of each."""

    def __init__(self, settings: Iterable[Path]):
        self.settings = {100 + i: path for i, path in enumerate(settings)}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # of the process of a ServerApp
        self.app, self.ids = client_app(), itertools.count(1)
        self.replies: dict[str, Message] = {}
        self.sent: list[tuple[int, RecordDict]] = []  # site, what it was asked
        self.meddle: Meddle = lambda site, records, reply: reply()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            ids.append(message.metadata.message_id)
            self._deliver(message)
        return ids

    def _deliver(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        path = self.settings[node]
        message.content = carried(message.content)
        context = Context(1, node, {"site-config": str(path)}, RecordDict(), {})

        def reply() -> RecordDict:
            site_app._opened.cache_clear()
            return self.app(message, context).content

        if message.metadata.message_type == "train":
            self.sent.append((node - 100, message.content))
            content = self.meddle(node - 100, message.content, reply)
        else:
            content = reply()
        if content is not None:
            answer = content if isinstance(content, Message) else Message(carried(content), reply_to=message)
            self.replies[message.metadata.message_id] = answer

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def get_node_ids(self) -> list[int]:
        return list(self.settings)

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError


def written(folder: Path, sites: Sites, more: str = "") -> list[Path]:
    """A folder per site with its rows as CSV and its site.toml."""
    paths = []
    for i, (A, y, name) in enumerate(zip(sites.features, sites.labels, sites.names, strict=True)):
        home = folder / name
        home.mkdir(parents=True)
        outcomes = np.reshape(y, (len(y), -1))
        labels = [f"y{k}" for k in range(outcomes.shape[1])]
        columns = list(sites.columns or (f"a{j}" for j in range(A.shape[1])))
        lines = [",".join([*columns, *labels])]
        lines += [",".join(map(repr, [*row.tolist(), *out.tolist()])) for row, out in zip(A, outcomes, strict=True)]
        (home / "rows.csv").write_text("\n".join(lines) + "\n")
        label = repr(labels) if y.ndim == 2 else repr("y0")
        path = home / "site.toml"
        path.write_text(f'name = "{name}"\nindex = {i}\ndata = "rows.csv"\nlabel = {label}\nstate = "state"\n{more}')
        paths.append(path)
    return paths


def forget(path: Path) -> None:
    """A site whose disk was lost."""
    shutil.rmtree(path.parent / "state")


def remote(settings: list[Path], folder: Path | None = None, **options: Any) -> tuple[Remote, FakeGrid]:
    grid = FakeGrid(settings)
    given: Any = {"patience": NOW} | options
    return Remote(grid, len(settings), folder=folder, **given), grid

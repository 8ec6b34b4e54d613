"""The ClientApp of a site that `compfed site` runs: it carries a message to the desk that holds the rows, and the reply back.

Flower starts a Python process for every message. To import what compfed computes with, to read the table and to compile local
steps would take longer than most answers, so this process does none of it: it imports Flower and the standard library, and
the desk (`open_desk`), which has all that, is one process of the site for as long as the site runs. They meet at a socket
in a folder that only the user they run as can open. Where no desk is found, the answer is worked out here: the same, later.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

DESK = "desk"  # in the configuration of the node: where the desk is
WAIT = 3600.0  # seconds; whoever is in a hurry is the server, which asks again


def client_app() -> ClientApp:
    """Answers questions with the rows that the node's site.toml names."""
    app = ClientApp()

    @app.query()
    def register(message: Message, context: Context) -> Message:
        return Message(_answered("register", message.content, context), reply_to=message)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return Message(_answered("reply", message.content, context), reply_to=message)

    return app


def _answered(what: str, records: RecordDict, context: Context) -> RecordDict:
    place = context.node_config.get(DESK)
    if place:
        try:
            return carried(str(place), what, records)
        except OSError:  # nobody there, or gone before it replied; a message that is answered twice is answered alike
            pass
    from compfed.federation.flower.site_app import answered

    return answered(what, records, context)


def carried(place: str, what: str, records: RecordDict) -> RecordDict:
    """The reply of the desk."""
    with socket.socket(socket.AF_UNIX) as desk:
        desk.settimeout(WAIT)
        desk.connect(place)
        desk.sendall(to_bytes(what, records))
        desk.shutdown(socket.SHUT_WR)
        data = received(desk)
    if not data:
        raise ConnectionError("the desk did not reply")
    return from_bytes(data)[1]


def received(end: socket.socket) -> bytes:
    """Everything that comes until the other side has said all."""
    return b"".join(iter(lambda: end.recv(2**20), b""))


def to_bytes(what: str, records: RecordDict) -> bytes:
    """Words and arrays as they are, one after another: an array stays the bytes that Flower carries."""
    words, arrays = records.get("words"), records.get("arrays")
    sent: dict[str, Array] = dict(arrays.items()) if isinstance(arrays, ArrayRecord) else {}
    said: dict[str, Any] = dict(words.items()) if isinstance(words, ConfigRecord) else {}
    raw = {name: value for name, value in said.items() if isinstance(value, bytes)}
    head: dict[str, Any] = {
        "what": what,
        "words": {name: value for name, value in said.items() if name not in raw} if words is not None else None,
        "bytes": [[name, len(value)] for name, value in raw.items()],
        "arrays": [[name, a.dtype, list(a.shape), a.stype, len(a.data)] for name, a in sent.items()],
    }
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *raw.values(), *(array.data for array in sent.values())])


def from_bytes(data: bytes) -> tuple[str, RecordDict]:
    """What `to_bytes` was given."""
    at = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:at])
    words: dict[str, Any] | None = head["words"]
    for name, size in head["bytes"]:
        words = {**(words or {}), name: data[at : at + size]}
        at += size
    arrays: dict[str, Array] = {}
    for name, dtype, shape, stype, size in head["arrays"]:
        arrays[name] = Array(dtype, tuple(shape), stype, data[at : at + size])
        at += size
    found: dict[str, Any] = {} if words is None else {"words": ConfigRecord(words)}
    return head["what"], RecordDict(found | ({"arrays": ArrayRecord(arrays)} if arrays else {}))

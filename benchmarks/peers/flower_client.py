"""Algorithm 1 as a Flower client; a module of its own, so that an actor reads the rows once."""

from __future__ import annotations

from clients import local_steps, rows
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
_rows: list = []


@app.train()
def train(message, context):
    if not _rows:
        _rows.extend(rows())
    i = int(context.node_config["partition-id"])
    kept = context.state.get("memory")
    before = () if kept is None else (kept["p"].numpy(), kept["S"].numpy())
    sent, (p, S) = local_steps(message.content["model"]["x"].numpy(), before, _rows[0][i], _rows[1][i])
    context.state["memory"] = ArrayRecord({"p": Array(p), "S": Array(S)})
    return Message(RecordDict({"model": ArrayRecord({"x": Array(sent)})}), reply_to=message)

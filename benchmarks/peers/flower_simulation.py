"""Algorithm 1 in Flower's simulation engine (Ray actors, one core each)."""

from __future__ import annotations

import os
from importlib.metadata import version

import numpy as np
from clients import Clock, rounds, rows
from flower_client import app as client_app
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

server_app, clock, found = ServerApp(), Clock(), []


@server_app.main()
def main(grid, context):
    x = np.zeros(rows()[0].shape[2])
    n = len(rows()[0])
    if "PEERS_WAIT" in os.environ:  # seconds between two looks for replies; Flower's own are 0.1
        grid.pull_interval = float(os.environ["PEERS_WAIT"])
    nodes = list(grid.get_node_ids())
    while len(nodes) < n:
        nodes = list(grid.get_node_ids())
    for _ in range(rounds()):
        content = RecordDict({"model": ArrayRecord({"x": Array(x)})})
        replies = grid.send_and_receive(
            [Message(content, dst_node_id=node, message_type="train") for node in nodes], timeout=600
        )
        x = np.mean(
            [reply.content["model"]["x"].numpy() for reply in sorted(replies, key=lambda r: r.metadata.src_node_id)],
            axis=0,
        )
        clock.mark()
    found.append(x)


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app, client_app, num_supernodes=len(rows()[0]),
        backend_config={"init_args": {"num_cpus": cores, "include_dashboard": False}, "client_resources": {"num_cpus": 1}},
    )  # fmt: skip
    clock.report("Flower, simulation engine", version("flwr"), found[0])

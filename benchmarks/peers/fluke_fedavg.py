"""FedAvg with tau full-batch steps of the same logistic regression in fluke (PyTorch, float32)."""

from __future__ import annotations

from importlib.metadata import version

import torch
from clients import ETA, TAU, Clock, rounds, rows
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server

clock = Clock()


class Timed(CentralizedFL):
    def notify(self, event, **kwargs):
        if event == "end_round":
            clock.mark()


class LogisticLoss(torch.nn.Module):
    def forward(self, z, b):
        return torch.nn.functional.softplus(-b * z[:, 0]).mean()


FlukeENV().set_device("cpu")
FlukeENV().set_inmemory(True)
FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
A, y = (torch.tensor(part, dtype=torch.float32) for part in rows())
steps = OptimizerConfigurator(DDict(name="SGD", lr=ETA), DDict(name="StepLR", step_size=1, gamma=1.0))
clients = [
    Client(i, FastDataLoader(A[i], y[i], num_labels=2, batch_size=0), None, steps, LogisticLoss(), local_epochs=TAU)
    for i in range(len(A))
]
model = torch.nn.Linear(A.shape[2], 1, bias=False)
server = Server(model, None, clients)
Timed(len(A), None, DDict(), clients=clients, server=server).run(rounds(), 1.0, finalize=False)
clock.report("fluke", version("fluke-fl"), note=f"FedAvg without the ridge, float32, torch {torch.__version__}")

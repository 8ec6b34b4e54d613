"""FedAvg with tau full-batch steps of the same logistic regression in pfl-research, with a PyTorch model (float32)."""

from __future__ import annotations

import itertools
from importlib.metadata import version

import torch
from clients import ETA, RIDGE, TAU, Clock, rounds, rows
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

clock = Clock()


class Linear(torch.nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(d))

    def loss(self, a, b):
        return torch.nn.functional.softplus(-b * (a @ self.w)).mean() + 0.5 * RIDGE * (self.w @ self.w)

    def metrics(self, a, b):
        return {}


class EachRound(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.mark()
        return False, Metrics()


A, y = (torch.tensor(part, dtype=torch.float32) for part in rows())
data = {str(i): Dataset((A[i], y[i]), user_id=str(i)) for i in range(len(A))}
turn = itertools.cycle(data)
federation = FederatedDataset(data.__getitem__, lambda: next(turn))
net = Linear(A.shape[2])
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=rounds(), evaluation_frequency=10**6, train_cohort_size=len(A), val_cohort_size=None
    ),
    SimulatedBackend(federation, federation),
    model,
    NNTrainHyperParams(local_num_epochs=TAU, local_learning_rate=ETA, local_batch_size=None),
    callbacks=[EachRound()],
    send_metrics_to_platform=False,
)
clock.report("pfl, PyTorch model", version("pfl"), note=f"FedAvg, float32, torch {torch.__version__}")

"""Algorithm 1 in pfl-research's simulated backend, with a NumPy model."""

from __future__ import annotations

import itertools
from importlib.metadata import version

import numpy as np
from clients import Clock, local_steps, rounds, rows
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
from pfl.internal.ops import numpy_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.stats import MappedVectorStatistics

set_framework_module(numpy_ops)
clock = Clock()


class Vector(Model):
    def __init__(self, x: np.ndarray):
        self.x = x

    def apply_model_update(self, statistics):
        return Vector(statistics["x"]), Metrics()


class Algorithm1(FederatedAlgorithm):
    def __init__(self, n: int, count: int):
        super().__init__()
        self.memory: dict[str, tuple] = {}
        self.n, self.count = n, count

    def get_next_central_contexts(self, model, iteration, algorithm_params, model_train_params, model_eval_params=None):
        clock.mark()
        if iteration == self.count:
            return None, model, Metrics()
        context = CentralContext(
            current_central_iteration=iteration, do_evaluation=False, cohort_size=self.n, population=Population.TRAIN,
            algorithm_params=algorithm_params, model_train_params=model_train_params, seed=0,
        )  # fmt: skip
        return (context,), model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        a, b = user_dataset.raw_data
        sent, self.memory[user_dataset.user_id] = local_steps(model.x, self.memory.get(user_dataset.user_id, ()), a, b)
        return MappedVectorStatistics({"x": sent}, weight=1.0), Metrics()

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        statistics.average()
        return model.apply_model_update(statistics)


A, y = rows()
data = {str(i): Dataset((A[i], y[i]), user_id=str(i)) for i in range(len(A))}
turn = itertools.cycle(data)  # everybody, in order, in every round
federation = FederatedDataset(data.__getitem__, lambda: next(turn))
model = Algorithm1(len(A), rounds()).run(
    AlgorithmHyperParams(), SimulatedBackend(federation, federation), Vector(np.zeros(A.shape[2])), ModelHyperParams(),
    callbacks=[], send_metrics_to_platform=False,
)  # fmt: skip
clock.report("pfl, NumPy model", version("pfl"), model.x)

"""What joining the sites is worth: local, averaged, federated and pooled models on rows that none of them saw."""

from compfed.comparison.compare import compare_local_federated_pooled
from compfed.comparison.result import Comparison

__all__ = ["Comparison", "compare_local_federated_pooled"]

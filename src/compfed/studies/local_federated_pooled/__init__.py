"""What joining the sites is worth: local, averaged, federated and pooled models on rows that none of them saw."""

from compfed.studies.local_federated_pooled.comparing import compare_local_federated_pooled
from compfed.studies.local_federated_pooled.result import Comparison

__all__ = ["Comparison", "compare_local_federated_pooled"]

"""Local-update methods: one paper, one file. Each class says which paper, which steps, and what is proved."""

from compfed.algorithms import fast_fedda, fista, scaffnew
from compfed.algorithms.accelerated_decoupled_prox import AcceleratedDecoupledProx
from compfed.algorithms.base import Algorithm, Citation, Sparse
from compfed.algorithms.compressed_decoupled_prox import CompressedDecoupledProx
from compfed.algorithms.coupled_control_variates import CoupledControlVariates
from compfed.algorithms.decoupled_prox import DecoupledProx
from compfed.algorithms.default_steps import default_steps
from compfed.algorithms.fast_fedda import FastFedDA
from compfed.algorithms.fedadmm import FedADMM
from compfed.algorithms.fedavg import FedAvg
from compfed.algorithms.fedda import FedDA
from compfed.algorithms.feddr import FedDR
from compfed.algorithms.fedmid import FedMid
from compfed.algorithms.fedpd import FedPD
from compfed.algorithms.fedplt import FedPLT
from compfed.algorithms.fedprox import FedProx
from compfed.algorithms.fedsplit import FedSplit
from compfed.algorithms.fista import FISTA
from compfed.algorithms.mime import Mime
from compfed.algorithms.mime_lite import MimeLite
from compfed.algorithms.naive_coupled import NaiveCoupled
from compfed.algorithms.normal_map import NormalMap
from compfed.algorithms.proximal_gradient import ProximalGradient
from compfed.algorithms.registry import ALGORITHMS, find, known, register
from compfed.algorithms.scaffnew import Scaffnew
from compfed.algorithms.scaffold import Scaffold
from compfed.algorithms.server_prox import ServerProx
from compfed.algorithms.variance_reduced_decoupled_prox import VarianceReducedDecoupledProx

__all__ = [
    "ALGORITHMS",
    "FISTA",
    "AcceleratedDecoupledProx",
    "Algorithm",
    "Citation",
    "CompressedDecoupledProx",
    "CoupledControlVariates",
    "DecoupledProx",
    "FastFedDA",
    "FedADMM",
    "FedAvg",
    "FedDA",
    "FedDR",
    "FedMid",
    "FedPD",
    "FedPLT",
    "FedProx",
    "FedSplit",
    "Mime",
    "MimeLite",
    "NaiveCoupled",
    "NormalMap",
    "ProximalGradient",
    "Scaffnew",
    "Scaffold",
    "ServerProx",
    "Sparse",
    "VarianceReducedDecoupledProx",
    "default_steps",
    "fast_fedda",
    "find",
    "fista",
    "known",
    "register",
    "scaffnew",
]  # fmt: skip

"""The paper: its setting, every run behind its figures and claims, the claims, and `compfed reproduce`.

    setting -> experiments, theorem -> traces by key -> claims, figures -> reproduction

Reference: Zhang, Hu, Johansson, "Composite federated learning with heterogeneous data", ICASSP 2024.
"""

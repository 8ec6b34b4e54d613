"""The paper: experiments -> traces by key -> claims, figures -> reproduce.

Reference: Zhang, Hu, Johansson, "Composite federated learning with heterogeneous data", ICASSP 2024.
"""

"""Draw the figure of the README: coefficients of single sites, of their average, of the federation and of the pooled rows.

python examples/readme_figure.py docs/_static
"""

from __future__ import annotations

import sys
from pathlib import Path

import compfed as cf


def main(folder: Path) -> None:
    table = cf.data.bundled.breast_cancer()
    model = cf.FederatedLogisticRegression(alpha=0.05, standardize=True)
    compared = cf.compare_local_federated(
        model, table.X, table.y, table.sites, pooled=True, feature_names=table.feature_names
    )
    figure = cf.plot_coefficients(compared)
    figure.set_size_inches(7.0, 4.6)
    figure.savefig(folder / "coefficients.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Server programs that minimise f + g over a federation: proximal Newton, proximal BFGS, and first-order methods."""

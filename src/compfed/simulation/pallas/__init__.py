"""GPU kernels for rounds, made from an algorithm's own client update and a loss's own formulas."""

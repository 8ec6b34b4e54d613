"""A site's side of a federation over a network: its settings, its replies, its state, its node."""

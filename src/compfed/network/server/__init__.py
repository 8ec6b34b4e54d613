"""The operator's side of a federation over a network. Nothing in here imports what holds rows."""

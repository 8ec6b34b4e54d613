"""The server programs of the estimators: fit, path, cross-validation, score. Nothing in here imports what holds rows."""

"""Contains the `sitecustomize` that `ddp-doctor run` puts first on PYTHONPATH."""

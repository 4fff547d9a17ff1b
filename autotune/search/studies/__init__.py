"""Optuna behind the search: samplers, storages, and a study that several machines share."""

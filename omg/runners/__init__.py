"""Runners by name (`runner`)."""

from omg.runners.vector_runner import EpisodeStats, VectorRunner

REGISTRY = {"vector": VectorRunner}

__all__ = ["REGISTRY", "EpisodeStats", "VectorRunner"]

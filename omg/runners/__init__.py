"""Runners by name (`runner`)."""

from omg.runners.team_runner import Opponents, TeamRunner, focal_scheme
from omg.runners.vector_runner import EpisodeStats, VectorRunner

REGISTRY = {"vector": VectorRunner}

__all__ = ["REGISTRY", "EpisodeStats", "Opponents", "TeamRunner", "VectorRunner", "focal_scheme"]

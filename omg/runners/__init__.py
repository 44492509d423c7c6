"""Runners by name (`runner`)."""

from omg.runners.host_runner import EpisodeRunner, HostRunner, ParallelRunner, WorldsFailed
from omg.runners.team_runner import Opponents, TeamRunner, focal_scheme
from omg.runners.vector_runner import EpisodeStats, VectorRunner

REGISTRY = {"vector": VectorRunner, "episode": EpisodeRunner, "parallel": ParallelRunner}

__all__ = [
    "REGISTRY",
    "EpisodeStats",
    "HostRunner",
    "Opponents",
    "TeamRunner",
    "VectorRunner",
    "WorldsFailed",
    "focal_scheme",
]

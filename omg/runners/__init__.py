"""Runners by name (`runner`)."""

from omg.runners.host_runner import EnvsFailed, EpisodeRunner, HostRunner, ParallelRunner
from omg.runners.members import play_members
from omg.runners.team_runner import Opponents, PolicyGroup, TeamRunner, focal_scheme
from omg.runners.vector_runner import EpisodeStats, VectorRunner

REGISTRY = {"vector": VectorRunner, "episode": EpisodeRunner, "parallel": ParallelRunner}

__all__ = [
    "REGISTRY",
    "EnvsFailed",
    "EpisodeStats",
    "HostRunner",
    "Opponents",
    "PolicyGroup",
    "TeamRunner",
    "VectorRunner",
    "focal_scheme",
    "play_members",
]

"""The others: written rules by world and name."""

from omg.opponents.scripted import REGISTRY, random_action

__all__ = ["REGISTRY", "random_action"]

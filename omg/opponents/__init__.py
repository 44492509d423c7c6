"""The others: written rules by world and name, and pools of frozen opponents."""

from omg.opponents.scripted import REGISTRY, SPLITS, random_action

__all__ = ["REGISTRY", "SPLITS", "random_action"]

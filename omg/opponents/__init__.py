"""Opponents: scripted policies by environment and name, and pools of frozen policies."""

from omg.opponents.scripted import REGISTRY, SPLITS, random_action

__all__ = ["REGISTRY", "SPLITS", "random_action"]

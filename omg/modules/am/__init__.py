"""Agent models by name (`am_model`)."""

from omg.modules.am.none_am import NoneAM

REGISTRY = {"none_am": NoneAM}

__all__ = ["REGISTRY", "NoneAM"]

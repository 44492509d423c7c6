"""Critics by name (`critic`)."""

from omg.modules.critics.coma import COMACritic, CriticSettings

REGISTRY = {"coma": COMACritic}

__all__ = ["REGISTRY", "COMACritic", "CriticSettings"]

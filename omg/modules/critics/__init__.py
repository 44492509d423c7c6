"""Critics by name (`critic`)."""

from typing import Any

from omg.modules.critics.central import CentralCritic
from omg.modules.critics.coma import COMACritic, CriticSettings

REGISTRY: dict[str, Any] = {"coma": COMACritic}

__all__ = ["REGISTRY", "COMACritic", "CentralCritic", "CriticSettings"]

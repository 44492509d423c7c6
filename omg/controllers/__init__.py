"""Controllers by name (`mac`). `multi_…`: one trained agent with frozen partners; without: all seats."""

from omg.controllers.base import Controller
from omg.controllers.basic_controller import BasicMAC
from omg.controllers.hop_controller import HopMAC

REGISTRY: dict[str, type[Controller]] = {
    "basic_mac": BasicMAC,
    "multi_module_mac": BasicMAC,
    "hop_mac": HopMAC,
    "multi_hop_mac": HopMAC,
}

WITH_PARTNERS = {"basic_mac": "multi_module_mac", "hop_mac": "multi_hop_mac"}
"""The name of each controller when it is one agent with frozen partners."""

__all__ = ["REGISTRY", "WITH_PARTNERS", "BasicMAC", "Controller", "HopMAC"]

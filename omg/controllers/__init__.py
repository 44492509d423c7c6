"""Controllers by name (`mac`). `multi_…`: the trained agent sits among others; without: it holds all seats."""

from omg.controllers.base import Controller
from omg.controllers.basic_controller import BasicMAC
from omg.controllers.hop_controller import HopMAC

REGISTRY: dict[str, type[Controller]] = {
    "basic_mac": BasicMAC,
    "multi_module_mac": BasicMAC,
    "hop_mac": HopMAC,
    "multi_hop_mac": HopMAC,
}

AMONG_OTHERS = {"basic_mac": "multi_module_mac", "hop_mac": "multi_hop_mac"}
"""The name of each controller when it is one agent among others."""

__all__ = ["AMONG_OTHERS", "REGISTRY", "BasicMAC", "Controller", "HopMAC"]

"""Controllers by name (`mac`): who decides for which seat."""

from omg.controllers.basic_controller import BasicMAC, MACSettings, Unrolled
from omg.controllers.rule_controller import RuleMAC

REGISTRY = {"basic_mac": BasicMAC}

__all__ = ["REGISTRY", "BasicMAC", "MACSettings", "RuleMAC", "Unrolled"]

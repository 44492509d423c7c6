"""Controllers by name (`mac`): who decides for which seat."""

from typing import Any

from omg.controllers.basic_controller import BasicMAC, Memory, Unrolled
from omg.controllers.hop_controller import HopMAC
from omg.controllers.om_controller import FocalMAC, MultiModuleMAC, Side, TeamPolicies, TeamPrior
from omg.controllers.rule_controller import MoodMAC, Rule, RuleMAC

REGISTRY: dict[str, Any] = {
    "basic_mac": BasicMAC,
    "am_mac": FocalMAC,
    "multi_module_mac": FocalMAC,
    "hop_mac": HopMAC,
    "multi_hop_mac": HopMAC,
}
"""`multi_…`: the runner seats the trained agent among others; the same without: it has all seats."""

AMONG_OTHERS = {"am_mac": "multi_module_mac", "hop_mac": "multi_hop_mac"}

__all__ = [
    "AMONG_OTHERS", "REGISTRY", "BasicMAC", "FocalMAC", "HopMAC", "Memory", "MoodMAC", "MultiModuleMAC", "Rule",
    "RuleMAC", "Side", "TeamPolicies", "TeamPrior", "Unrolled",
]  # fmt: skip

"""Controllers by name (`mac`): who decides for which seat."""

from omg.controllers.basic_controller import BasicMAC, Memory, Unrolled
from omg.controllers.om_controller import FocalMAC, MultiModuleMAC, Side, TeamPolicies
from omg.controllers.rule_controller import Rule, RuleMAC

REGISTRY: dict[str, type[BasicMAC]] = {"basic_mac": BasicMAC, "am_mac": FocalMAC, "multi_module_mac": FocalMAC}
"""`multi_module_mac`: the runner seats the trained agent among others; `am_mac`: it has all seats."""

__all__ = [
    "REGISTRY", "BasicMAC", "FocalMAC", "Memory", "MultiModuleMAC", "Rule", "RuleMAC", "Side", "TeamPolicies",
    "Unrolled",
]  # fmt: skip

"""Mixers by name (`mixer`)."""

from typing import Any

from omg.modules.mixers.qmix import QMixer, QMixSettings
from omg.modules.mixers.qtran import QTranBase, QTranSettings
from omg.modules.mixers.vdn import VDNMixer

REGISTRY: dict[str, Any] = {"vdn": VDNMixer, "qmix": QMixer, "qtran": QTranBase}

__all__ = ["REGISTRY", "QMixSettings", "QMixer", "QTranBase", "QTranSettings", "VDNMixer"]

"""Mixers by name (`mixer`)."""

from omg.modules.mixers.qmix import QMixer, QMixSettings
from omg.modules.mixers.qtran import QTranBase, QTranSettings
from omg.modules.mixers.vdn import VDNMixer

REGISTRY = {"vdn": VDNMixer, "qmix": QMixer, "qtran": QTranBase}

__all__ = ["REGISTRY", "QMixSettings", "QMixer", "QTranBase", "QTranSettings", "VDNMixer"]

"""Agent models by name (`am_model`)."""

from omg.modules.am.base import AgentModel, Conditioning, Inferred, Judge, Seen, check_model
from omg.modules.am.base_am import BaseAM
from omg.modules.am.liam_am import LIAM
from omg.modules.am.none_am import NoneAM
from omg.modules.am.omg_am import OMGAM

REGISTRY: dict[str, type[AgentModel]] = {"none_am": NoneAM, "base_am": BaseAM, "liam_am": LIAM, "omg_am": OMGAM}

__all__ = [
    "LIAM", "OMGAM", "REGISTRY", "AgentModel", "BaseAM", "Conditioning", "Inferred", "Judge", "NoneAM", "Seen",
    "check_model",
]  # fmt: skip

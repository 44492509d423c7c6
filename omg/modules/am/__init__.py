"""Agent models by name (`am_model`)."""

from omg.modules.am.base import AgentModel, Conditioning, Inferred, Judge, Seen, check_model
from omg.modules.am.base_am import BaseAM
from omg.modules.am.liam_am import LIAM
from omg.modules.am.meliba_am import MeLIBA
from omg.modules.am.mix_am import MixAM
from omg.modules.am.none_am import NoneAM
from omg.modules.am.omg_am import OMGAM
from omg.modules.am.omg_plus_am import OMGPlusAM
from omg.modules.am.oracle_am import OracleAM

REGISTRY: dict[str, type[AgentModel]] = {
    "none_am": NoneAM, "base_am": BaseAM, "liam_am": LIAM, "meliba_am": MeLIBA, "mix_am": MixAM,
    "omg_am": OMGAM, "omg_plus_am": OMGPlusAM, "oracle_am": OracleAM,
}  # fmt: skip

__all__ = [
    "LIAM", "OMGAM", "REGISTRY", "AgentModel", "BaseAM", "Conditioning", "Inferred", "Judge", "MeLIBA", "MixAM",
    "NoneAM", "OMGPlusAM", "OracleAM", "Seen", "check_model",
]  # fmt: skip

"""Policy networks by name (`policy_model`)."""

from typing import Any

from omg.modules.agents.conv_rnn_agent import ConvRNNAgent
from omg.modules.agents.idv_rnn_agent import IDVRNNAgent
from omg.modules.agents.mix_rnn_agent import MixRNNAgent
from omg.modules.agents.rnn_agent import AgentSettings, DuellingRNNAgent, RNNAgent

Agent = RNNAgent | IDVRNNAgent

REGISTRY: dict[str, Any] = {
    "rnn": RNNAgent,
    "idv_rnn": IDVRNNAgent,
    "duelling_rnn": DuellingRNNAgent,
    "mix_rnn": MixRNNAgent,
    "conv_rnn": ConvRNNAgent,
}

__all__ = [
    "REGISTRY", "Agent", "AgentSettings", "ConvRNNAgent", "DuellingRNNAgent", "IDVRNNAgent", "MixRNNAgent", "RNNAgent",
]  # fmt: skip

"""OMG: a laboratory for opponent modelling in multi-agent reinforcement learning."""

__version__ = "0.2.0"

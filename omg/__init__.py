"""OMG: opponent modelling in multi-agent reinforcement learning, compiled end to end."""

__version__ = "0.6.0"

"""Our stag hunt as a module with a `parallel_env`: an environment of PettingZoo whose observations list entities."""

from omg.envs import to_pettingzoo


def parallel_env(**settings):
    return to_pettingzoo("stag_hunt", **settings)

"""Environments that run in Python, outside compiled programs, such as SMAC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omg.envs.multiagentenv import GameType, MultiAgentEnv, Spec
from omg.envs.packages import missing_package

INSTALL = (
    "pip install git+https://github.com/oxwhirl/smac.git (the smac on PyPI is an unrelated program) and install "
    "StarCraft II in $SC2PATH, or use --env-config=battle, which has the same maps"
)


class HostEnv(MultiAgentEnv):
    """An environment with SMAC's interface. Only `runner: episode` and `runner: parallel` can run it."""

    info_names: tuple[str, ...] = ()
    """The keys of `info` that are logged."""

    @staticmethod
    def sizes(name: str, env: Any, game_type: GameType) -> Spec:
        """The spec of an environment with SMAC's `get_env_info`."""
        info = env.get_env_info()
        sizes = (info["n_agents"], info["n_actions"], info["obs_shape"], info["state_shape"], info["episode_limit"])
        return Spec(name, *sizes, game_type)


class SC2Env(HostEnv):
    """SMAC's StarCraft II."""

    info_names = ("battle_won", "dead_allies", "dead_enemies")

    def __init__(self, env_args: Mapping[str, Any]):
        env = open_sc2(env_args, 0)
        self.spec = self.sizes("sc2", env, "cooperative")
        env.close()


def open_sc2(env_args: Mapping[str, Any], seed: int) -> Any:
    """SMAC's `StarCraft2Env` with these settings."""
    try:
        from smac.env import StarCraft2Env
    except ImportError as error:
        raise missing_package("the environment sc2", "smac", INSTALL, error) from error
    return StarCraft2Env(**env_args, seed=seed)

"""Worlds in Python, outside the compiled program: SMAC itself is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omg.envs.multiagentenv import Kind, MultiAgentEnv, Spec
from omg.utils.settings import UserError

INSTALL = (
    "this world needs SMAC and StarCraft II: pip install git+https://github.com/oxwhirl/smac.git (the smac on PyPI is "
    "another program), and the game in $SC2PATH. Without them, --env-config=battle plays the same maps."
)


class HostWorld(MultiAgentEnv):
    """A world with SMAC's methods. Only `runner: episode` and `runner: parallel` can play it."""

    info_names: tuple[str, ...] = ()
    """What a game tells of itself besides rewards."""

    @staticmethod
    def sizes(name: str, world: Any, kind: Kind) -> Spec:
        info = world.get_env_info()
        sizes = (info["n_agents"], info["n_actions"], info["obs_shape"], info["state_shape"], info["episode_limit"])
        return Spec(name, *sizes, kind)


class SC2World(HostWorld):
    """SMAC's StarCraft II."""

    info_names = ("battle_won", "dead_allies", "dead_enemies")

    def __init__(self, env_args: Mapping[str, Any]):
        world = open_sc2(env_args, 0)
        self.spec = self.sizes("sc2", world, "cooperative")
        world.close()


def open_sc2(env_args: Mapping[str, Any], seed: int) -> Any:
    try:
        from smac.env import StarCraft2Env
    except ImportError as error:
        raise UserError(INSTALL) from error
    return StarCraft2Env(**env_args, seed=seed)

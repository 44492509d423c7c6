"""SMAC itself: StarCraft II in Python, outside the compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omg.envs.multiagentenv import MultiAgentEnv, Spec
from omg.utils.settings import UserError

SMAC_INFO = ("battle_won", "dead_allies", "dead_enemies")
INSTALL = (
    "this world needs SMAC and StarCraft II: pip install git+https://github.com/oxwhirl/smac.git (the smac on PyPI is "
    "another program), and the game in $SC2PATH. Without them, --env-config=battle plays the same maps."
)


class HostWorld(MultiAgentEnv):
    """SMAC's StarCraft II. Only `runner: episode` and `runner: parallel` can play it."""

    def __init__(self, env_args: Mapping[str, Any]):
        self.env_args = dict(env_args)
        world = open_sc2(self.env_args, 0)
        info = world.get_env_info()
        world.close()
        sizes = (info["n_agents"], info["n_actions"], info["obs_shape"], info["state_shape"], info["episode_limit"])
        self.spec = Spec("sc2", *sizes, "cooperative")


def open_sc2(env_args: Mapping[str, Any], seed: int) -> Any:
    try:
        from smac.env import StarCraft2Env
    except ImportError as error:
        raise UserError(INSTALL) from error
    return StarCraft2Env(**env_args, seed=seed)

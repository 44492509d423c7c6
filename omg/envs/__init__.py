"""Worlds by name (`env`). `make("foraging", grid_size=8)` gives one; what a world imports is loaded when it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep
from omg.utils.settings import choose, fill_exactly


def _foraging(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.foraging import Foraging, ForagingSettings

    return Foraging(fill_exactly(ForagingSettings, env_args, "env_args."))


def _predator_prey(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.predator_prey import PredatorPrey, PredatorPreySettings

    return PredatorPrey(fill_exactly(PredatorPreySettings, env_args, "env_args."))


def _matrix_game(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.matrix_game import MatrixGame, MatrixGameSettings

    return MatrixGame(fill_exactly(MatrixGameSettings, env_args, "env_args."))


def _jaxmarl(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.jaxmarl_adapter import JaxMARLWorld

    return JaxMARLWorld(env_args)


def _battle(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.battle import Battle, BattleSettings

    return Battle(fill_exactly(BattleSettings, env_args, "env_args."))


def _stag_hunt(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.stag_hunt import StagHunt, StagHuntSettings

    return StagHunt(fill_exactly(StagHuntSettings, env_args, "env_args."))


def _snowdrift(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.snowdrift import Snowdrift, SnowdriftSettings

    return Snowdrift(fill_exactly(SnowdriftSettings, env_args, "env_args."))


def _sc2(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.host import SC2World

    return SC2World(env_args)


def _pettingzoo(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.pettingzoo_worlds import PettingZooWorld

    return PettingZooWorld(env_args)


REGISTRY: dict[str, Callable[[Mapping[str, Any]], MultiAgentEnv]] = {
    "foraging": _foraging,
    "predator_prey": _predator_prey,
    "matrix_game": _matrix_game,
    "jaxmarl": _jaxmarl,
    "battle": _battle,
    "stag_hunt": _stag_hunt,
    "snowdrift": _snowdrift,
    "sc2": _sc2,
    "pettingzoo": _pettingzoo,
}


def to_smac(world: str, seed: int = 0, /, **env_args: Any) -> Any:
    """A world of ours behind SMAC's interface: `to_smac("battle", 1, map_name="8m")` in place of `StarCraft2Env`."""
    from omg.envs.smac_interface import SMACInterface

    return SMACInterface(make(world, **env_args), seed)


def to_pettingzoo(world: str | MultiAgentEnv, seed: int = 0, /, render_mode: str | None = None, **env_args: Any) -> Any:
    """A world of ours as PettingZoo's `ParallelEnv`: `to_pettingzoo("stag_hunt", stags=2)`."""
    from omg.envs.pettingzoo_worlds import OurParallelEnv

    ours = make(world, **env_args) if isinstance(world, str) else world
    return OurParallelEnv(ours, seed, render_mode)


def make(world: str, /, **env_args: Any) -> MultiAgentEnv:
    return choose(REGISTRY, world, "world")(env_args)


__all__ = ["REGISTRY", "MultiAgentEnv", "Spec", "Timestep", "make", "to_pettingzoo", "to_smac"]

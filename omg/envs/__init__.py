"""Environments by name: `make("foraging", grid_size=8)`, or by environment configuration: `make("two_step")`.

`REGISTRY` maps each name (the setting `env`) to a function that builds the environment from its `env_args`. That
function imports the packages of the environment; packages of other environments need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omg.config import available, read_yaml
from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep, checked
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


def _shaping_game(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.shaping_game import MatrixShaping, MatrixShapingSettings

    return MatrixShaping(fill_exactly(MatrixShapingSettings, env_args, "env_args."))


def _shaping_coins(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.shaping_coins import CoinShaping, CoinShapingSettings

    return CoinShaping(fill_exactly(CoinShapingSettings, env_args, "env_args."))


def _jaxmarl(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.coin_game import CoinGame
    from omg.envs.jaxmarl_adapter import JaxMARLEnv

    return (CoinGame if env_args.get("name") == "coin_game" else JaxMARLEnv)(env_args)


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
    from omg.envs.host import SC2Env

    return SC2Env(env_args)


def _pettingzoo(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.pettingzoo_adapter import PettingZooEnv

    return PettingZooEnv(env_args)


def _melting_pot(env_args: Mapping[str, Any]) -> MultiAgentEnv:
    from omg.envs.melting_pot import MeltingPotEnv

    return MeltingPotEnv(env_args)


REGISTRY: dict[str, Callable[[Mapping[str, Any]], MultiAgentEnv]] = {
    "foraging": _foraging,
    "predator_prey": _predator_prey,
    "matrix_game": _matrix_game,
    "shaping_game": _shaping_game,
    "shaping_coins": _shaping_coins,
    "jaxmarl": _jaxmarl,
    "battle": _battle,
    "stag_hunt": _stag_hunt,
    "snowdrift": _snowdrift,
    "sc2": _sc2,
    "pettingzoo": _pettingzoo,
    "melting_pot": _melting_pot,
}


def make(name: str, /, **env_args: Any) -> MultiAgentEnv:
    """Builds an environment.

    Args:
        name: a key of `REGISTRY` (`"foraging"`), or an environment configuration that comes with the package
            (`"two_step"`). The configuration's `env_args` are the defaults.
        env_args: the environment's settings. They override the defaults one by one.

    Raises:
        UserError: the name or a setting is unknown, or a package that the environment needs is not installed.
    """
    configs = available("envs")
    choose({**configs, **REGISTRY}, name, "environment")
    config = read_yaml(configs[name]) if name in configs else {}
    # A registered environment takes precedence over a configuration of another environment with the same name.
    if name in REGISTRY and config.get("env") != name:
        return REGISTRY[name](env_args)
    return choose(REGISTRY, config.get("env"), "environment")({**(config.get("env_args") or {}), **env_args})


def to_smac(name: str, seed: int = 0, /, **env_args: Any) -> Any:
    """An environment with SMAC's interface: `to_smac("battle", 1, map_name="8m")` replaces `StarCraft2Env`.

    Args:
        name: as in `make`.
        seed: the seed of the episodes.
        env_args: as in `make`.
    """
    from omg.envs.smac_interface import SMACInterface

    return SMACInterface(make(name, **env_args), seed)


def to_pettingzoo(name: str | MultiAgentEnv, seed: int = 0, /, render_mode: str | None = None, **env_args: Any) -> Any:
    """An environment as PettingZoo's `ParallelEnv`: `to_pettingzoo("stag_hunt", stags=2)`.

    Args:
        name: as in `make`, or an environment that is already built.
        seed: the seed of the episodes until `reset(seed=…)` sets another one.
        render_mode: PettingZoo's render mode; `"rgb_array"` is supported.
        env_args: as in `make`.
    """
    from omg.envs.pettingzoo_adapter import ToParallelEnv

    env = make(name, **env_args) if isinstance(name, str) else name
    return ToParallelEnv(env, seed, render_mode)


__all__ = ["REGISTRY", "MultiAgentEnv", "Spec", "Timestep", "checked", "make", "to_pettingzoo", "to_smac"]

"""Melting Pot's substrates, through Shimmy's interface of PettingZoo.

Agents see frames, and the global state is a frame of the whole map. Melting Pot samples its own random numbers: the
same seed does not give the same episode again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omg.envs import trust
from omg.envs.host import HostEnv
from omg.envs.multiagentenv import check_game_type
from omg.envs.packages import missing_package
from omg.envs.pettingzoo_adapter import PettingZooGame, shrunk
from omg.utils.settings import UserError, fill_exactly, nearest, setting

INSTALL = "pip install 'shimmy<2.1' dm-meltingpot"
WHOLE_MAP = "WORLD.RGB"
NOT_FOR_AGENTS = ("COLLECTIVE_REWARD",)
"""Melting Pot shows agents the sum of all rewards, and allows no policy to use it."""


@dataclass(frozen=True)
class MeltingPotSettings:
    """The settings in `env_args`. The environment configuration melting_pot.yaml explains them."""

    substrate: str = "prisoners_dilemma_in_the_matrix__repeated"
    episode_limit: int = setting(1000, "the time limit in steps", above=0)
    shrink: int = 8
    game_type: str = "mixed"


class Substrate(PettingZooGame):
    """A substrate with SMAC's interface."""

    def get_state(self) -> np.ndarray:
        return shrunk(np.asarray(self.game.state()[0][WHOLE_MAP]), self.shrink).ravel()

    def get_env_info(self) -> dict[str, int]:
        whole_map = shrunk(np.zeros(self.game.state_space.shape, np.uint8), self.shrink)
        return super().get_env_info() | {"state_shape": whole_map.size}


def open_melting_pot(env_args: Mapping[str, Any], seed: int) -> Substrate:
    """Opens a substrate, each player in its usual role."""
    s = fill_exactly(MeltingPotSettings, env_args, "env_args.")
    for package in ("shimmy", "meltingpot"):
        if trust.in_current_folder(package):
            raise UserError(f"{package} in the current folder hides the package: rename it or use another folder.")
    try:
        import meltingpot
        import shimmy
    except ImportError as error:
        raise missing_package("Melting Pot", error.name or "shimmy", INSTALL, error) from error
    known = sorted(meltingpot.substrate.SUBSTRATES)
    if s.substrate not in known:
        raise UserError(
            f"Melting Pot has no substrate {s.substrate!r}.{nearest(s.substrate, known)} Known: {', '.join(known)}."
        )
    try:
        game = shimmy.MeltingPotCompatibilityV0(substrate_name=s.substrate, max_cycles=s.episode_limit)
    except (ImportError, AttributeError) as error:
        raise UserError(f"this version of Shimmy cannot open Melting Pot ({error}): {INSTALL}.") from error
    return Substrate(game, s.episode_limit, seed, s.shrink, NOT_FOR_AGENTS)


class MeltingPotEnv(HostEnv):
    """A substrate of Melting Pot, run by `runner: episode` or `runner: parallel`."""

    def __init__(self, env_args: Mapping[str, Any]):
        env = open_melting_pot(env_args, 0)
        game_type = check_game_type(env_args.get("game_type", "mixed"))
        self.spec = replace(self.sizes("melting_pot", env, game_type), obs_layout=env.layout, partial=True)
        env.close()

"""Battles with any units at any positions, played loop by loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from omg.envs import make
from omg.envs.battle.fight import Fight


@pytest.fixture
def field(tmp_path):
    """Builds a battle with these units at these positions, and a function that runs its game loops one by one."""

    def made(allies: dict[str, int], enemies: dict[str, int], places, order: int | None = 1, units=None):
        start = [{"side": "ally", "at": [8, 16], "units": allies}, {"side": "enemy", "at": [24, 16], "units": enemies}]
        entry = {"allies": allies, "enemies": enemies, "episode_limit": 100, "start": start}
        path = tmp_path / "maps.yaml"
        path.write_text(yaml.safe_dump({"maps": {"mine": entry}, "units": units or {}}, sort_keys=False))
        env = make("battle", map_name="mine", map_file=str(path))
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        x, y = jnp.array(places, jnp.float32).T
        fight = jax.tree.map(lambda a: a[:, None], state.fight._replace(x=x, y=y))
        loop = jax.jit(lambda fight, actions: env.rules.loop(fight, env._orders(fight, actions[:, None])))

        def play(fight: Fight, loops: int, actions=None) -> list[Fight]:
            """The units before the first loop and after each loop."""
            actions = jnp.full(env.spec.n_agents, order) if actions is None else jnp.array(actions)
            history = [fight]
            for _ in range(loops):
                history.append(loop(history[-1], actions))
            return history

        return env, fight, play

    return made


def column(history: list[Fight], name: str, unit: int) -> np.ndarray:
    """One property of one unit over the loops."""
    return np.array([float(getattr(fight, name)[unit, 0]) for fight in history])

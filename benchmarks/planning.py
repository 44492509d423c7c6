"""How fast HOP decides: 200 simulations × 5 draws of goals on 64 boards at once, beside mctx on a world of nothing.

`python benchmarks/planning.py [world] [simulations=200] [goal_draws=5] [boards=64]`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mctx

from omg.controllers import HopMAC
from omg.envs import make
from omg.utils.device import describe


def rate(decide: Callable[[Any], Any], boards: int) -> float:
    """Decisions per second, the best of three calls."""
    jax.block_until_ready(decide(jax.random.key(0)))
    seconds = []
    for i in range(3):
        started = time.perf_counter()
        jax.block_until_ready(decide(jax.random.key(i + 1)))
        seconds.append(time.perf_counter() - started)
    return boards / min(seconds)


def hop(world: str, simulations: int, draws: int, boards: int) -> float:
    env = make(world)
    mac = HopMAC(env, {"simulations": simulations, "goal_draws": draws})
    networks = mac.init_networks(jax.random.key(0))
    state, seen = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), boards))
    memory, seats = mac.init_memory(networks, boards), jnp.zeros((boards, 1), jnp.int32)
    return rate(jax.jit(lambda key: mac.plan(networks, seen, memory, seats, state, key, True)), boards)


def bare_mctx(simulations: int, draws: int, boards: int, actions: int = 5) -> float:
    rows = boards * draws

    def step(_: Any, key: Any, action: Any, inside: Any) -> Any:
        value = jax.random.uniform(key, (rows,))
        flat = jnp.zeros((rows, actions))
        return mctx.RecurrentFnOutput(
            reward=value, discount=jnp.full(rows, 0.95), prior_logits=flat, value=value
        ), inside

    root = mctx.RootFnOutput(
        prior_logits=jnp.zeros((rows, actions)), value=jnp.zeros(rows), embedding=jnp.zeros((rows, 1))
    )
    decide = jax.jit(
        lambda key: (
            mctx.muzero_policy(
                None, key, root, step, simulations, max_depth=16, dirichlet_fraction=0.0, pb_c_init=1.0
            ).action_weights
        )
    )
    return rate(decide, boards)


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    world = next((word for word in words if "=" not in word), "stag_hunt")
    simulations, draws, boards = (
        int(given.get(k, v)) for k, v in (("simulations", 200), ("goal_draws", 5), ("boards", 64))
    )
    print(f"{describe()}: {simulations} simulations × {draws} draws, {boards} boards")
    print(f"hop on {world}: {hop(world, simulations, draws, boards):,.0f} decisions/s")
    print(f"mctx alone: {bare_mctx(simulations, draws, boards):,.0f} decisions/s")


if __name__ == "__main__":
    main(sys.argv[1:])

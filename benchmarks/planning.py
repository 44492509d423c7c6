"""How fast HOP decides: 200 simulations × 5 draws of goals on 64 boards at once, beside mctx on a world of nothing; and
what it takes to read one step of the co-players, with goals of every kind and beyond the gate.

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
from omg.modules.goal_sets import GoalSettings, GoalSpace, size_of
from omg.modules.vae import VAE
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


def reading(world: str, boards: int, form: str | None = None, gate: float | None = None) -> float:
    """Microseconds for following one step of everybody on every board, with the world's own goals or learned ones."""
    env, key = make(world), jax.random.key(0)
    config: dict[str, Any] = {"gate_distance": gate}
    space = None
    if form is not None:
        config |= {"goal_form": form, "learned_goals": True}
        settings = GoalSettings()
        vae = VAE(size_of(form, env.spec.obs_size, settings.goal_window), 128, settings.goal_latent_dim, key)
        goals = jax.random.normal(key, (settings.n_goal_clusters, settings.goal_latent_dim))
        space = GoalSpace(vae, goals, form)
    mac = HopMAC(env, config, space)
    networks = mac.init_networks(key)
    state, seen = jax.vmap(env.reset)(jax.random.split(key, boards))
    still, on = jnp.zeros((boards, env.spec.n_agents), jnp.int32), jnp.ones(boards, bool)

    def follow(memory: Any, i: Any) -> tuple[Any, None]:
        # Never quite the same, or the compiler would do it once.
        shown = seen._replace(obs=seen.obs + 1e-6 * i)
        return mac.observe(networks, memory, shown, still, state, shown, on)[0], None

    times = 100
    places = jnp.arange(times, dtype=jnp.float32)
    steps = jax.jit(lambda _: jax.lax.scan(follow, mac.init_memory(networks, boards), places)[0].belief)
    return 1e6 / rate(steps, times)


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    world = next((word for word in words if "=" not in word), "stag_hunt")
    simulations, draws, boards = (
        int(given.get(k, v)) for k, v in (("simulations", 200), ("goal_draws", 5), ("boards", 64))
    )
    print(f"{describe()}: {simulations} simulations × {draws} draws, {boards} boards")
    print(f"hop on {world}: {hop(world, simulations, draws, boards):,.0f} decisions/s")
    print(f"mctx alone: {bare_mctx(simulations, draws, boards):,.0f} decisions/s")
    for many in (boards, 1):
        kinds: list[tuple[str, str | None]] = [("its own goals", None)]
        kinds += [(f"goals by {form}", form) for form in ("state", "trajectory", "state_time_reward")]
        for name, form in kinds:
            plain, gated = (reading(world, many, form, gate) for gate in (None, -1.0))
            print(f"following a step on {many} boards, {name}: {plain:,.0f} µs, {gated:,.0f} with all beyond the gate")


if __name__ == "__main__":
    main(sys.argv[1:])

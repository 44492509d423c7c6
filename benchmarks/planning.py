"""Measures HOP's decisions per second and the time of a belief update.

A decision is 200 simulations × 5 sampled goal combinations, with 64 boards in parallel. For comparison, mctx runs a
search of the same size in a no-op environment. Belief updates are measured for the goals that the environment defines
and for learned goals, each with no gate and with all agents beyond the distance gate.

`python benchmarks/planning.py [ENV] [simulations=200] [goal_draws=5] [boards=64]`
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
from omg.modules.goal_sets import GoalSettings, GoalSpace, event_size
from omg.modules.vae import VAE
from omg.utils.device import describe


def rate(decide: Callable[[Any], Any], boards: int) -> float:
    """Decisions per second, the fastest of three calls."""
    jax.block_until_ready(decide(jax.random.key(0)))
    seconds = []
    for i in range(3):
        started = time.perf_counter()
        jax.block_until_ready(decide(jax.random.key(i + 1)))
        seconds.append(time.perf_counter() - started)
    return boards / min(seconds)


def hop(env_name: str, simulations: int, draws: int, boards: int) -> float:
    env = make(env_name)
    mac = HopMAC(env, {"simulations": simulations, "goal_draws": draws})
    networks = mac.init_params(jax.random.key(0))
    state, seen = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), boards))
    memory, seats = mac.init_memory(networks, boards), jnp.zeros((boards, 1), jnp.int32)
    return rate(
        jax.jit(lambda key: mac.planner.plan(networks, seen, memory.belief, memory.t, seats, state, key, True)), boards
    )


def bare_mctx(simulations: int, draws: int, boards: int, actions: int = 5) -> float:
    rows = boards * draws

    def step(_: Any, key: Any, action: Any, embedding: Any) -> Any:
        value = jax.random.uniform(key, (rows,))
        flat = jnp.zeros((rows, actions))
        return mctx.RecurrentFnOutput(
            reward=value, discount=jnp.full(rows, 0.95), prior_logits=flat, value=value
        ), embedding

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


def reading(env_name: str, boards: int, form: str | None = None, gate: float | None = None) -> float:
    """Microseconds of one belief update over all agents and boards; `form` is None for the environment's own goals."""
    env, key = make(env_name), jax.random.key(0)
    config: dict[str, Any] = {"gate_distance": gate}
    space = None
    if form is not None:
        config |= {"goal_form": form, "learned_goals": True}
        settings = GoalSettings()
        vae = VAE(event_size(form, env.spec.obs_size, settings.goal_window), 128, settings.goal_latent_dim, key)
        goals = jax.random.normal(key, (settings.n_goal_clusters, settings.goal_latent_dim))
        space = GoalSpace(vae, goals, form)
    mac = HopMAC(env, config, space)
    networks = mac.init_params(key)
    state, seen = jax.vmap(env.reset)(jax.random.split(key, boards))
    still, on = jnp.zeros((boards, env.spec.n_agents), jnp.int32), jnp.ones(boards, bool)

    def follow(memory: Any, i: Any) -> tuple[Any, None]:
        # The input changes at every step, so that the compiler cannot hoist the computation out of the scan.
        shown = seen._replace(obs=seen.obs + 1e-6 * i)
        return mac.observe(networks, memory, shown, still, state, shown, on)[0], None

    times = 100
    places = jnp.arange(times, dtype=jnp.float32)
    steps = jax.jit(lambda _: jax.lax.scan(follow, mac.init_memory(networks, boards), places)[0].belief)
    return 1e6 / rate(steps, times)


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    env_name = next((word for word in words if "=" not in word), "stag_hunt")
    simulations, draws, boards = (
        int(given.get(k, v)) for k, v in (("simulations", 200), ("goal_draws", 5), ("boards", 64))
    )
    print(f"{describe()}: {simulations} simulations × {draws} goal samples, {boards} boards")
    print(f"hop on {env_name}: {hop(env_name, simulations, draws, boards):,.0f} decisions/s")
    print(f"mctx in a no-op environment: {bare_mctx(simulations, draws, boards):,.0f} decisions/s")
    for many in (boards, 1):
        goal_sets: list[tuple[str, str | None]] = [("goals of the environment", None)]
        goal_sets += [(f"learned goals ({form})", form) for form in ("state", "trajectory", "state_time_reward")]
        for name, form in goal_sets:
            plain, gated = (reading(env_name, many, form, gate) for gate in (None, -1.0))
            print(f"belief update, {many} boards, {name}: {plain:,.0f} µs, {gated:,.0f} µs beyond the gate")


if __name__ == "__main__":
    main(sys.argv[1:])

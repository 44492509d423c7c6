"""`omg bench`: how fast a world and a training run are, after compilation, and what a replayed episode costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from omg.envs import MultiAgentEnv, make
from omg.envs.host import HostWorld
from omg.opponents.pool import throw_away
from omg.parts import Parts, StandIns, args_sanity_check, build
from omg.utils import device, vaes
from omg.utils.logging import say, show

SECONDS = 6.0
"""How long each measurement lasts at least."""
AHEAD = 16
"""Every how many steps a world has a new start ready."""


def bench(config: Mapping[str, Any], as_json: bool) -> int:
    notices = device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    config, mended = args_sanity_check(config)
    for notice in notices + mended:
        say(notice, "yellow")
    result = measure(build(config, stand_ins(config)))
    if as_json:
        print(json.dumps(result))
        return 0
    show(result)
    return 0


def stand_ins(config: Mapping[str, Any]) -> StandIns | None:
    """A throw-away pool of `bench_pool` untrained opponents and a VAE, where the configuration needs them."""
    if config["mac"] != "multi_module_mac":
        return None
    spec = make(config["env"], **(config["env_args"] or {})).spec
    network = {key: config[key] for key in ("rnn_hidden_dim",)}
    card = vaes.card_of(spec, config)
    return StandIns(throw_away(spec, network, config["bench_pool"]), vaes.make(card, jax.random.key(0)))


def measure(parts: Parts) -> dict[str, Any]:
    settings = parts.loop.settings
    worlds = max(parts.settings.bench_worlds, settings.batch_size_run)
    return {
        "config": parts.settings.name,
        "env": parts.spec.name,
        "device": device.describe(),
        "batch_size_run": settings.batch_size_run,
        "batch_size": settings.batch_size,
        "updates_per_iteration": settings.updates_per_iteration,
        "seeds": parts.settings.seeds,
        **measure_training(parts),
        "env_worlds": worlds,
        "env_steps_per_second_env": None if isinstance(parts.env, HostWorld) else measure_world(parts.env, worlds),
        "replay_bytes_per_episode": parts.loop.buffer.bytes_per_episode(),
    }


def measure_training(parts: Parts) -> dict[str, float]:
    """Whole iterations once updates have begun: collecting, inserting, sampling, updating."""
    loop = parts.loop
    state = loop.init()
    started = time.perf_counter()
    state, _ = jax.block_until_ready(loop.run(state, 0, 0))
    compiled = time.perf_counter() - started
    episode = 0
    # Fill the buffer until updates begin, and a little further so that memory has been touched.
    warm_up = -(-loop.sampled // loop.collected) + 3
    state, _ = jax.block_until_ready(loop.run(state, episode, warm_up))
    episode += warm_up * loop.collected

    steps, updates, iterations = [], [], []

    def call(n: int) -> None:
        nonlocal state, episode
        state, totals = loop.run(state, episode, n)
        totals = jax.device_get(totals)
        episode += n * loop.collected
        steps.append(int(totals.steps.sum()))
        updates.append(int(totals.updates.sum()))
        iterations.append(n)

    seconds = repeat(call)
    return {
        "env_steps_per_second_train": sum(steps) / seconds,
        "updates_per_second": sum(updates) / seconds,
        "seconds_per_iteration": seconds / sum(iterations),
        "steps_per_episode": sum(steps) / (sum(iterations) * loop.collected * parts.settings.seeds),
        "compile_seconds": compiled,
    }


def measure_world(env: MultiAgentEnv, worlds: int) -> float:
    """The world alone in a scan: random available actions, everything it shows kept, finished worlds started anew.

    Starts are drawn ahead: at every step for the next few worlds, so that each has a new one every `AHEAD` steps.
    """
    agents, limit = env.spec.n_agents, env.spec.episode_limit
    some = max(worlds // AHEAD, 1)

    def step(carry, given):
        ((state, seen, t), fresh), (i, key) = carry, given
        k_act, k_world, k_reset = jax.random.split(key, 3)
        lots = jax.random.bits(k_act, (worlds, agents, env.spec.n_actions), jnp.uint16)
        actions = jnp.where(seen.avail_actions, lots, 0).argmax(-1).astype(jnp.int32)
        state, seen = jax.vmap(env.step)(state, actions, jax.random.split(k_world, worlds))
        over = seen.terminated | (t + 1 >= limit)
        drawn = jax.vmap(env.reset)(jax.random.split(k_reset, some))
        place = i % (worlds // some) * some
        fresh = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), place, 0), fresh, drawn
        )

        def renew(new: Any, old: Any) -> Any:
            return jnp.where(over.reshape(over.shape + (1,) * (old.ndim - 1)), new, old).astype(old.dtype)

        state, seen = jax.tree.map(renew, fresh, (state, seen))
        kept = (seen.obs, seen.state, seen.avail_actions, seen.reward)
        return ((state, seen, jnp.where(over, 0, t + 1)), fresh), kept

    @jax.jit
    def play(carry, key):
        carry, kept = jax.lax.scan(step, carry, (jnp.arange(50), jax.random.split(key, 50)))
        # A sum keeps the compiler from leaving out what nobody looks at.
        return carry, sum(x.astype(jnp.float32).sum() for x in kept)

    state, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), worlds))
    carry = ((state, seen, jnp.zeros(worlds, jnp.int32)), (state, seen))
    for i in range(2):
        carry, _ = jax.block_until_ready(play(carry, jax.random.key(i)))
    calls = 0

    def call(n: int) -> None:
        nonlocal carry, calls
        for _ in range(n):
            carry, total = play(carry, jax.random.key(calls))
            calls += 1
        jax.block_until_ready(total)

    seconds = repeat(call)
    return calls * 50 * worlds / seconds


def repeat(call: Callable[[int], None]) -> float:
    """Calls with growing counts until `SECONDS` have been spent; returns how many were."""
    total, n = 0.0, 1
    while total < SECONDS:
        started = time.perf_counter()
        call(n)
        last = time.perf_counter() - started
        total += last
        # About a second a call, so that the way into the compiled program and back does not count.
        n = max(1, min(2 * n if last < 0.5 else n, 1 << 20))
    return total

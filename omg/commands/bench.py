"""`omg bench`: measures the speed of training and of the environment after compilation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from omg import config as configuration
from omg.artifacts import TYPES, card_of
from omg.build import Experiment, StandIns, args_sanity_check, build, make_env, resolve, settings_of
from omg.commands.common import configure
from omg.config import Command
from omg.controllers import REGISTRY as mac_REGISTRY
from omg.controllers import WITH_PARTNERS
from omg.envs import MultiAgentEnv
from omg.envs.host import HostEnv
from omg.opponents.pool import untrained
from omg.training.settings import BenchSettings
from omg.utils import device
from omg.utils.logging import compiling, say, show
from omg.utils.settings import fill

SUMMARY = """\
Measures environment steps and updates per second of a training run, and of the environment alone, after compilation.
Opponents and pre-trained networks are untrained stand-ins. --json prints one line of JSON."""
EXAMPLES = [
    "omg bench --config=iql --env-config=foraging --json",
    "omg bench --config=ppo --env-config=battle --bench_envs=16384 with env_args.map_name=3s_vs_5z",
]
SECONDS = 6.0
"""The least duration of each measurement."""
AHEAD = 16
"""Every environment has a new initial state ready every so many steps."""


def settings(command: Command) -> list[type]:
    return [BenchSettings, *settings_of(resolve(configuration.load(command))[0])]


def main(command: Command) -> int:
    config = configure(command, (BenchSettings,))
    bench = fill(BenchSettings, config)
    if "identities" in config:
        config["identities"] = bench.bench_pool
    if config.get("one_partner_each"):
        # The best response to one partner is an ordinary run.
        config["seeds"], config["one_partner_each"] = bench.bench_pool, bench.bench_pool > 1
    config, notices = args_sanity_check(config)
    for notice in notices:
        say(notice, "yellow")
    result = measure(build(config, stand_ins(config, bench.bench_pool)), bench.bench_envs)
    if command.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


def stand_ins(config: dict[str, Any], size: int) -> StandIns | None:
    """Untrained opponents and untrained artifacts, for one agent with frozen partners."""
    if config["mac"] not in WITH_PARTNERS.values():
        return None
    spec = make_env(config).spec
    network = {key: config[key] for key in ("rnn_hidden_dim",) if key in config}
    needs = mac_REGISTRY[config["mac"]].needs_of(config)
    made = {name: TYPES[name].build(card_of(name, spec, config), jax.random.key(0)) for name in needs}
    return StandIns(untrained(spec, network, size), made)


def measure(experiment: Experiment, bench_envs: int) -> dict[str, Any]:
    loop, run = experiment.loop, experiment.settings
    envs = max(bench_envs, loop.settings.batch_size_run)
    return {
        "config": run.name,
        "env": run.env_config,
        "device": device.describe(),
        "batch_size_run": loop.settings.batch_size_run,
        "episodes_per_update": loop.sampled,
        "updates_per_iteration": loop.updates_per_iteration,
        "seeds": run.seeds,
        **measure_training(experiment),
        "bench_envs": envs,
        "env_steps_per_second_env": None if isinstance(experiment.env, HostEnv) else measure_env(experiment.env, envs),
        "replay_bytes_per_episode": loop.buffer.bytes_per_episode(),
    }


def measure_training(experiment: Experiment) -> dict[str, float]:
    """Whole iterations after updates have begun: collecting, inserting, sampling, updating."""
    loop, run = experiment.loop, experiment.settings
    state = loop.init()
    started = time.perf_counter()
    with compiling(f"{run.name} on {run.env_config}"):
        state, _ = jax.block_until_ready(loop.run(state, 0, 0))
    compiled = time.perf_counter() - started
    episode = 0
    # Fills the buffer until updates begin, and a little further so that memory has been touched.
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
        "steps_per_episode": sum(steps) / (sum(iterations) * loop.collected * run.seeds),
        "compile_seconds": compiled,
    }


def measure_env(env: MultiAgentEnv, envs: int) -> float:
    """The environment alone in a scan: random available actions, observations kept, finished episodes reset.

    Initial states are made ahead: at every step for some environments, so that each has a new one every `AHEAD` steps.
    """
    agents, limit = env.spec.n_agents, env.spec.episode_limit
    some = max(envs // AHEAD, 1)

    def step(carry, given):
        ((state, seen, t), fresh), (i, key) = carry, given
        k_act, k_env, k_reset = jax.random.split(key, 3)
        noise = jax.random.bits(k_act, (envs, agents, env.spec.n_actions), jnp.uint16)
        actions = jnp.where(seen.avail_actions, noise, 0).argmax(-1).astype(jnp.int32)
        state, seen = jax.vmap(env.step)(state, actions, jax.random.split(k_env, envs))
        over = seen.terminated | (t + 1 >= limit)
        made = jax.vmap(env.reset)(jax.random.split(k_reset, some))
        place = i % (envs // some) * some
        fresh = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), place, 0), fresh, made
        )

        def renew(new: Any, old: Any) -> Any:
            return jnp.where(over.reshape(over.shape + (1,) * (old.ndim - 1)), new, old).astype(old.dtype)

        state, seen = jax.tree.map(renew, fresh, (state, seen))
        kept = (seen.obs, seen.state, seen.avail_actions, seen.reward)
        return ((state, seen, jnp.where(over, 0, t + 1)), fresh), kept

    @jax.jit
    def play(carry, key):
        carry, kept = jax.lax.scan(step, carry, (jnp.arange(50), jax.random.split(key, 50)))
        # The sum keeps the compiler from removing outputs that are not used.
        return carry, sum(x.astype(jnp.float32).sum() for x in kept)

    state, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), envs))
    carry = ((state, seen, jnp.zeros(envs, jnp.int32)), (state, seen))
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
    return calls * 50 * envs / seconds


def repeat(call: Callable[[int], None]) -> float:
    """Calls with growing counts until `SECONDS` have passed; returns the seconds spent."""
    total, n = 0.0, 1
    while total < SECONDS:
        started = time.perf_counter()
        call(n)
        last = time.perf_counter() - started
        total += last
        # About a second per call, so that the overhead of a call does not count.
        n = max(1, min(2 * n if last < 0.5 else n, 1 << 20))
    return total

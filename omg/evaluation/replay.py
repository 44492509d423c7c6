"""A picture of an episode: a GIF of one test game, frame by frame as the world draws itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from PIL import Image

from omg.controllers import BasicMAC
from omg.envs import MultiAgentEnv


def save_replay(env: MultiAgentEnv, mac: BasicMAC, agent: Any, key: jax.Array, path: Path) -> Path:
    """Plays one greedy episode and writes it to `path`."""
    frames = [picture for state in episode_states(env, mac, agent, key) if (picture := env.render(state))]
    path.parent.mkdir(parents=True, exist_ok=True)
    small = [frame.quantize(32, method=Image.Quantize.FASTOCTREE) for frame in frames]
    hold = [160] * (len(small) - 1) + [1200]
    small[0].save(path, save_all=True, append_images=small[1:], duration=hold, loop=0)
    return path


def episode_states(env: MultiAgentEnv, mac: BasicMAC, agent: Any, key: jax.Array) -> list[Any]:
    """The world's state at every moment of one episode, up to its end."""

    def step(carry, k):
        world, seen, memory = carry
        actions, memory = mac.select_actions(
            agent, jax.tree.map(lambda x: x[None], seen), memory, jnp.int32(0), k, True
        )
        new, shown = env.step(world, actions[0], k)
        return (new, shown, memory), (new, shown.terminated)

    @jax.jit
    def play(key: jax.Array):
        k_reset, k_play = jax.random.split(key)
        world, seen = env.reset(k_reset)
        start = (world, seen, mac.init_memory(agent, 1))
        _, (worlds, ended) = jax.lax.scan(step, start, jax.random.split(k_play, env.spec.episode_limit))
        return world, worlds, ended

    first, worlds, ended = play(key)
    length = int(jnp.argmax(ended)) + 1 if bool(ended.any()) else env.spec.episode_limit
    worlds = jax.device_get(worlds)
    return [jax.device_get(first), *(jax.tree.map(lambda x, t=t: x[t], worlds) for t in range(length))]

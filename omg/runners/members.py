"""Episodes of the members of a pool, each in a team of its own copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, make_scheme
from omg.envs import MultiAgentEnv
from omg.runners.host_runner import HostRunner
from omg.runners.team_runner import PolicyGroup
from omg.runners.vector_runner import VectorRunner


def play_members(
    env: MultiAgentEnv, group: PolicyGroup, episodes: int, keys: Array, host: HostRunner | None = None
) -> EpisodeBatch:
    """`[member, episode, time, …]` of one architecture group, with one key for each member.

    With `host` the environments are those of this runner, in Python: one member plays after the other.
    """
    if host:
        runner, start = host.seated(group.mac, episodes), jnp.int32(0)
        members = [jax.tree.map(lambda x, i=i: x[i], group.policies) for i in range(group.size)]
        played = [runner.play(p, start, key, True).batch for p, key in zip(members, keys, strict=True)]
        return jax.tree.map(lambda *x: jnp.stack(x), *played)
    compiled = VectorRunner(env, group.mac, *make_scheme(env.spec), episodes, n_seeds=group.size)
    times = jnp.zeros(group.size, jnp.int32)
    batch = jax.jit(lambda p, k: compiled.play(p, times, k, True).batch)(group.policies, keys)
    assert batch is not None
    return batch

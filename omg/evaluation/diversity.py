"""How differently the members of a pool act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import EpisodeBatch, make_scheme, time_first
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv
from omg.opponents import random_action
from omg.runners import PolicyGroup, VectorRunner


def disagreement(env: MultiAgentEnv, groups: Sequence[PolicyGroup], envs: int = 32) -> np.ndarray:
    """How often each pair of members chooses different actions, on observations from random play."""
    mac = ScriptedMAC(env.spec, random_action)
    runner = VectorRunner(env, mac, *make_scheme(env.spec), envs)
    batch = jax.jit(lambda key: runner.play(None, jnp.int32(0), key, True).batch)(jax.random.key(1))
    chosen: dict[int, np.ndarray] = {}
    for group in groups:
        actions = jax.jit(jax.vmap(lambda p, group=group: actions_of(group, p, batch)))(group.policies)
        chosen |= dict(zip(group.ids, np.asarray(actions), strict=True))
    real = np.asarray(batch["filled"], bool)
    rows = np.stack([chosen[i][real] for i in sorted(chosen)])
    return (rows[:, None] != rows[None]).mean((2, 3))


def actions_of(group: PolicyGroup, params: Any, batch: EpisodeBatch) -> jax.Array:
    """The actions that one member would take at every step of these episodes, in every seat; `[batch, time, agent]`."""
    if not isinstance(group.mac, ScriptedMAC):
        outputs = jnp.swapaxes(group.mac.unroll(params, batch).outputs, 0, 1)
        return jnp.where(batch.avail_actions, outputs, UNAVAILABLE).argmax(-1)
    rows, steps, agents = batch.actions.shape
    decide = jax.vmap(jax.vmap(lambda *x: group.mac.decide(params, *x)))
    seats = jnp.broadcast_to(jnp.arange(agents), (rows, agents))

    def step(memory: jax.Array, seen: Any) -> tuple[jax.Array, jax.Array]:
        obs, avail_actions, key = seen
        actions, memory = decide(memory, obs, avail_actions, seats, jax.random.split(key, (rows, agents)))
        return memory, actions

    along = (time_first(batch.obs), time_first(batch.avail_actions), jax.random.split(jax.random.key(2), steps))
    return time_first(jax.lax.scan(step, group.mac.init_memory(params, rows), along)[1])

"""The hand-over within a run: a scripted policy acts first, then planning with beliefs (HOP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.utils.settings import setting


@dataclass(frozen=True)
class HandOverSettings:
    rule_policy: str | None = setting(None, "scripted policy that acts until planning takes over (switch_when)")
    switch_when: Literal["time", "confidence"] = setting(
        "time", "planning takes over after switch_after steps of training, or in every episode once beliefs are sure"
    )
    switch_after: int = setting(
        10000, "switch_when time: steps of training in which rule_policy acts, those of all seats", low=0
    )
    switch_confidence: float = setting(
        0.8, "switch_when confidence: probability that the likeliest goal of every co-player must have", low=0, high=1
    )


def plans_now(
    settings: HandOverSettings,
    belief: Float[Array, "batch agent goal"],
    alive: Bool[Array, "batch agent"],
    seats: Int[Array, "batch seat"],
    t_env: Array,
    test_mode: bool,
) -> Bool[Array, "batch seat"]:
    """Whether planning has taken over. By time it has in every test; by confidence, as soon as beliefs are sure."""
    if settings.switch_when == "time":
        return jnp.broadcast_to(test_mode | (t_env >= settings.switch_after), seats.shape)
    sure = (belief.max(-1) >= settings.switch_confidence) | ~alive
    own = jnp.arange(belief.shape[1]) == seats[..., None]
    return (sure[:, None] | own).all(-1)


def by_rule(
    rule: Callable[..., Array],
    obs: Float[Array, "batch agent obs"],
    avail_actions: Bool[Array, "batch seat action"],
    seats: Int[Array, "batch seat"],
    key: Array,
) -> Int[Array, "batch seat"]:
    """The actions of the scripted policy in these seats."""
    own = jnp.take_along_axis(obs, seats[..., None], 1)
    return jax.vmap(jax.vmap(rule))(own, avail_actions, seats, jax.random.split(key, seats.shape)).astype(jnp.int32)

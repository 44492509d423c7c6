"""From what a network says to what an agent does, among the actions it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.epsilon_schedules import DecayThenFlatSchedule

UNAVAILABLE = -1e9
"""Stands in for minus infinity: large enough to lose every comparison, finite so that masks can zero it."""


@dataclass(frozen=True)
class SelectorSettings:
    epsilon_start: float = 1.0
    epsilon_finish: float = 0.05
    epsilon_anneal_time: int = 50_000
    epsilon_decay: Literal["linear", "exp"] = "linear"
    test_greedy: bool = True


class ActionSelector:
    """Base of the selectors: they share a schedule of exploration."""

    Settings = SelectorSettings

    def __init__(self, settings: SelectorSettings):
        self.settings = settings
        s = settings
        self.schedule = DecayThenFlatSchedule(s.epsilon_start, s.epsilon_finish, s.epsilon_anneal_time, s.epsilon_decay)

    def epsilon(self, t_env: Array) -> Float[Array, ""]:
        return self.schedule.eval(t_env)

    def select_action(
        self,
        outputs: Float[Array, "*rows action"],
        avail_actions: Bool[Array, "*rows action"],
        t_env: Array,
        key: Array,
        test_mode: bool,
    ) -> Int[Array, "*rows"]:
        raise NotImplementedError(f"{type(self).__name__} does not say how it chooses")


class EpsilonGreedyActionSelector(ActionSelector):
    """The best available action, or with probability ε any available one. Takes action values."""

    def select_action(self, outputs, avail_actions, t_env, key, test_mode):
        greedy = jnp.where(avail_actions, outputs, UNAVAILABLE).argmax(-1)
        if test_mode and self.settings.test_greedy:
            return greedy
        epsilon = jnp.where(test_mode, self.settings.epsilon_finish, self.epsilon(t_env))
        k_explore, k_action = jax.random.split(key)
        lots = jax.random.uniform(k_action, avail_actions.shape)
        anything = jnp.where(avail_actions, lots, -1.0).argmax(-1)
        return jnp.where(jax.random.uniform(k_explore, greedy.shape) < epsilon, anything, greedy)


class MultinomialActionSelector(ActionSelector):
    """A draw from the policy. Takes probabilities that already respect the available actions."""

    def select_action(self, outputs, avail_actions, t_env, key, test_mode):
        if test_mode and self.settings.test_greedy:
            return jnp.where(avail_actions, outputs, UNAVAILABLE).argmax(-1)
        logits = jnp.where(avail_actions, jnp.log(outputs + 1e-10), UNAVAILABLE)
        return jax.random.categorical(key, logits)


REGISTRY: dict[str, type[ActionSelector]] = {
    "epsilon_greedy": EpsilonGreedyActionSelector,
    "multinomial": MultinomialActionSelector,
}

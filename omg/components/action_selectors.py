"""Action selectors by name (`action_selector`): from network outputs to actions, among the available ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.utils.settings import T_MAX_HELP, setting

UNAVAILABLE = -1e9
"""Stands for minus infinity: it loses every comparison, and it is finite, so that masks can multiply it by zero."""


@dataclass(frozen=True)
class SelectorSettings:
    epsilon_start: float = setting(1.0, "exploration rate ε at the start", low=0, high=1)
    epsilon_finish: float = setting(0.05, "exploration rate ε after the schedule", low=0, high=1)
    epsilon_anneal_time: float = setting(0.1, "steps over which ε falls; up to 1: a fraction of t_max", low=0)
    epsilon_decay: Literal["linear", "exp"] = setting("linear", "shape of the schedule: linear or exp")
    test_greedy: bool = setting(True, "act greedily in tests")
    t_max: int = setting(200_000, T_MAX_HELP, above=0)

    @property
    def duration(self) -> float:
        """Environment steps over which ε falls."""
        time = self.epsilon_anneal_time
        return max(time * self.t_max if time <= 1 else time, 1)


class ActionSelector:
    """Base class of the selectors: the schedule of exploration."""

    Settings = SelectorSettings

    def __init__(self, settings: SelectorSettings):
        self.settings = settings

    def epsilon(self, t_env: Array | int) -> Float[Array, ""]:
        """ε falls from `epsilon_start` to `epsilon_finish`, then stays."""
        s, t = self.settings, jnp.asarray(t_env, jnp.float32)
        if s.epsilon_decay == "exp":
            # The exponential reaches max(finish, 0.01) at the end of the schedule and never falls below `finish`.
            scale = -s.duration / jnp.log(max(s.epsilon_finish, 0.01))
            return jnp.clip(jnp.exp(-t / scale), s.epsilon_finish, s.epsilon_start)
        passed = jnp.clip(t / s.duration, 0.0, 1.0)
        return s.epsilon_start + (s.epsilon_finish - s.epsilon_start) * passed

    def select_action(
        self,
        outputs: Float[Array, "*rows action"],
        avail_actions: Bool[Array, "*rows action"],
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
    ) -> Int[Array, "*rows"]:
        """One action per row. `test_mode` may be an array: then one program serves training and tests."""
        raise NotImplementedError(f"{type(self).__name__} must define select_action")


class EpsilonGreedyActionSelector(ActionSelector):
    """The best available action, or with probability ε a random available one. Takes action values."""

    def select_action(self, outputs, avail_actions, t_env, key, test_mode):
        greedy = jnp.where(avail_actions, outputs, UNAVAILABLE).argmax(-1)
        if test_mode is True and self.settings.test_greedy:
            return greedy
        test_epsilon = 0.0 if self.settings.test_greedy else self.settings.epsilon_finish
        epsilon = jnp.where(test_mode, test_epsilon, self.epsilon(t_env))
        *rows, actions = avail_actions.shape
        noise = jax.random.uniform(key, (*rows, actions + 1))
        random = jnp.where(avail_actions, noise[..., :-1], -1.0).argmax(-1)
        return jnp.where(noise[..., -1] < epsilon, random, greedy)


class MultinomialActionSelector(ActionSelector):
    """A sample from the policy. Takes probabilities that are zero for unavailable actions."""

    def select_action(self, outputs, avail_actions, t_env, key, test_mode):
        greedy = jnp.where(avail_actions, outputs, UNAVAILABLE).argmax(-1)
        if test_mode is True and self.settings.test_greedy:
            return greedy
        logits = jnp.where(avail_actions, jnp.log(outputs + 1e-10), UNAVAILABLE)
        sampled = jax.random.categorical(key, logits)
        return jnp.where(test_mode, greedy, sampled) if self.settings.test_greedy else sampled


REGISTRY: dict[str, type[ActionSelector]] = {
    "epsilon_greedy": EpsilonGreedyActionSelector,
    "multinomial": MultinomialActionSelector,
}

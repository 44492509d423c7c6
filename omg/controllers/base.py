"""The interface of controllers: from observations to actions, for the seats they are given.

A controller holds settings and shapes. Networks are passed in as `params`, a dictionary keyed by file name, so that
they can be trained, frozen or stacked. Memory is a pytree that the caller carries from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import Scheme
from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep

Params = dict[str, Any]


class Controller:
    """Base class. The class attributes say what a controller can do; no caller asks for a class by its name."""

    plans: ClassVar[bool] = False
    """It searches in the environment itself: it needs the environment's state, and `observe` after every step."""
    can_be_focal: ClassVar[bool] = True
    """It can be the trained agent with frozen partners."""
    can_be_opponent: ClassVar[bool] = True
    """Frozen, it can sit in the other seats (be a member of a pool)."""
    needs: tuple[str, ...] = ()
    """Pre-trained artifacts that it is built with, by name: "vae", "goals"."""
    prior_size: int = 0
    """Size of the vector that is carried from one episode to the next with the same partners; 0: nothing is."""
    carried_size: int = 0
    """The part of it that is the policy's recurrent state (`carry_memory`)."""
    given_identity: bool = False
    """That vector is the identity of the partners instead (the oracle)."""
    own_networks: bool = False
    """Every seat has a network of its own."""
    group: tuple[int, ...] = (0,)
    """With frozen partners: the agents that learn together, as places after the focal one, which is the first."""

    rule: Callable[..., Array] | None = None
    """The scripted policy `rule_policy`, which acts until planning takes over."""

    spec: Spec

    @classmethod
    def create(cls, env: MultiAgentEnv, config: Mapping[str, Any], artifacts: Mapping[str, Any]) -> Controller:
        """Builds the controller of an experiment; `artifacts` holds what `needs_of` names."""
        raise NotImplementedError(f"{cls.__name__} must define create")

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        """The dataclasses of all settings that it and its networks read under this configuration."""
        return []

    @classmethod
    def needs_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The pre-trained artifacts that this configuration needs."""
        return ()

    @property
    def scheme(self) -> Scheme:
        """Fields that its episodes hold beyond those of `make_scheme`."""
        return {}

    def init_params(self, key: Array) -> Params:
        """New networks, keyed by file name; the policy is "agent"."""
        raise NotImplementedError(f"{type(self).__name__} must define init_params")

    def init_memory(self, params: Any, batch: int, seats: int | None = None, prior: Any = None) -> Any:
        """The memory before the first step of `batch` episodes, for `seats` agents (all by default).

        `prior` is what the controller carries over from earlier episodes with the same partners.
        """
        raise NotImplementedError(f"{type(self).__name__} must define init_memory")

    def restarted(self, again: Bool[Array, "*batch"], fresh: Any, memory: Any) -> Any:
        """The memory after some episodes of a batch have started again."""
        return jax.tree.map(lambda new, old: where_rows(again, new, old), fresh, memory)

    def select_actions(
        self,
        params: Any,
        seen: Timestep,
        memory: Any,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, "*batch seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Any]:
        """Actions for `seats` (all by default), and the new memory.

        `seen` holds the observations of these seats; if the controller `plans` it holds those of all agents,
        `env_state` is the environment's state, and `seats` is given per batch row.
        """
        raise NotImplementedError(f"{type(self).__name__} must define select_actions")

    def observe(
        self,
        params: Any,
        memory: Any,
        seen: Timestep,
        actions: Int[Array, "batch agent"],
        env_state: Any,
        shown: Timestep,
        running: Bool[Array, " batch"],
    ) -> tuple[Any, dict[str, Array]]:
        """After a step from `seen` to `shown`: the new memory, and values to store in the episode by field name."""
        return memory, {}

    def weighted(self, updates: Params, lr: float) -> Params:
        """A step of the optimiser with learning rate `lr`, by network; some weights may have a rate of their own."""
        return updates

    def exploration(self, t_env: int) -> dict[str, float]:
        """Values of the exploration schedules, for the log."""
        return {}


def uniform_over(avail_actions: Bool[Array, "*rows action"]) -> Float[Array, "*rows action"]:
    """The uniform distribution over available actions."""
    return avail_actions / jnp.maximum(avail_actions.sum(-1, keepdims=True), 1)


def where_rows(rows: Bool[Array, "*batch"], new: Array, old: Array) -> Array:
    """The new values in some rows, the old ones in the others."""
    return jnp.where(rows.reshape(*rows.shape, *(1,) * (old.ndim - rows.ndim)), new, old)

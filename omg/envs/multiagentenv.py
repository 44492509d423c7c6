"""What a world is: two pure functions, `reset` and `step`, and a static `spec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["cooperative", "zero-sum", "mixed"]


class Storage(NamedTuple):
    """How replay keeps a vector: each number is a multiple of `scale`, and the multiple fits into `dtype`."""

    dtype: str = "float32"
    scale: float = 1.0


PLAIN = Storage()


@dataclass(frozen=True)
class Spec:
    """The sizes of a world, and how compactly what it shows can be kept without losing anything."""

    name: str
    n_agents: int
    n_actions: int
    obs_size: int
    state_size: int
    episode_limit: int
    kind: Kind
    obs_storage: Storage = PLAIN
    state_storage: Storage = PLAIN
    obs_layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of an observation's parts, in order, where somebody needs to take it apart."""

    def team_reward(self, reward: Float[Array, "*axes agent"]) -> Float[Array, "*axes"]:
        """One number for the team: a shared reward counted once, in mixed games the sum over agents.

        In a zero-sum game the sum would always be nothing: there it is the first agent's.
        """
        if self.kind == "cooperative":
            return reward.mean(-1)
        return reward.sum(-1) if self.kind == "mixed" else reward[..., 0]


class Timestep(NamedTuple):
    """What a world shows after `reset` or `step`. `terminated` is the end of the game, not of the time allowed."""

    obs: Float[Array, "agent obs"]
    state: Float[Array, " state"]
    avail_actions: Bool[Array, "agent action"]
    reward: Float[Array, " agent"]
    terminated: Bool[Array, ""]
    alive: Bool[Array, " agent"]
    info: dict[str, Array]


class Goals(NamedTuple):
    """What there is to be after, where a world can be told that way."""

    open: Bool[Array, " goal"]
    reached: Int[Array, " agent"]
    """Which goal each agent reached with the last step; -1: none."""


class MultiAgentEnv:
    """Base of every compiled world. `state` is any pytree; `info` has the same scalar entries at every step."""

    spec: Spec
    n_goals: int = 0
    """How many goals a world knows (`goals`); 0: it knows none."""
    goal_kinds: tuple[int, ...] = ()
    """Which kind each goal is of: what stays the same from one episode to the next."""
    goal_size: int = 0
    goal_names: tuple[str, ...] = ()
    """How pictures call them."""

    def reset(self, key: Array) -> tuple[Any, Timestep]:
        raise NotImplementedError(f"{type(self).__name__} does not say how an episode starts")

    def step(self, state: Any, actions: Int[Array, " agent"], key: Array) -> tuple[Any, Timestep]:
        raise NotImplementedError(f"{type(self).__name__} does not say what a step does")

    def goals(self, state: Any) -> Goals:
        raise NotImplementedError(f"{type(self).__name__} does not say what its agents may be after")

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """Every goal as an agent with this observation sees it (`goal_size` numbers each)."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its goals look like")

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        """How far each goal is, where that means something."""
        return jnp.zeros((*obs.shape[:-1], self.n_goals))

    def render(self, state: Any) -> Image | None:
        """A picture of one moment, where the world has one."""
        return None

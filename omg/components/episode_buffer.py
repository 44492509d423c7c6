"""Episodes as arrays: what they hold (scheme), a batch of them (EpisodeBatch), and many of them (ReplayBuffer)."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.multiagentenv import Spec


class Field(NamedTuple):
    """One entry of a scheme: the shape of one value, how it is stored, and the group it is repeated for, if any."""

    vshape: tuple[int, ...]
    dtype: str = "float32"
    group: str | None = None
    scale: float = 1.0
    per_episode: bool = False
    """One value for a whole episode: its axis of time has length one."""


Scheme = dict[str, Field]
Groups = dict[str, int]


def make_scheme(spec: Spec) -> tuple[Scheme, Groups]:
    """What every episode of a world holds. Controllers and agent models add fields of their own."""
    scheme = {
        "obs": Field((spec.obs_size,), spec.obs_storage.dtype, "agents", spec.obs_storage.scale),
        "state": Field((spec.state_size,), spec.state_storage.dtype, None, spec.state_storage.scale),
        "avail_actions": Field((spec.n_actions,), "bool", "agents"),
        "actions": Field((), "int8" if spec.n_actions <= 127 else "int16", "agents"),
        "reward": Field((), "float32", "agents"),
        "alive": Field((), "bool", "agents"),
        "terminated": Field((), "bool"),
        "filled": Field((), "bool"),
    }
    return scheme, {"agents": spec.n_agents}


def pack(value: Array, field: Field) -> Array:
    """A value as the scheme stores it."""
    if field.scale != 1.0:
        value = jnp.round(value / field.scale)
    return value.astype(field.dtype)


def shape_of(field: Field, groups: Groups) -> tuple[int, ...]:
    return ((groups[field.group],) if field.group else ()) + field.vshape


class EpisodeBatch(eqx.Module):
    """Arrays `[batch, time, …]`. Slot t holds what was seen at t and what was done and earned there.

    A batch of episodes of at most T steps has T+1 slots: the last holds only what was seen at the end. `filled` is
    true where a step was taken, `terminated` where that step ended the game (running out of time does not).
    """

    data: dict[str, Array]
    scales: tuple[tuple[str, float], ...] = eqx.field(static=True, default=())

    @classmethod
    def zeros(cls, scheme: Scheme, groups: Groups, *leading: int) -> EpisodeBatch:
        data = {name: jnp.zeros((*leading, *shape_of(f, groups)), f.dtype) for name, f in scheme.items()}
        return cls(data, tuple((name, f.scale) for name, f in scheme.items() if f.scale != 1.0))

    def unpacked(self, name: str) -> Array:
        """A field as the network saw it while acting."""
        value = self.data[name].astype(jnp.float32)
        scale = dict(self.scales).get(name)
        return value if scale is None else value * scale

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    @property
    def batch_size(self) -> int:
        return self.data["filled"].shape[0]

    @property
    def max_seq_length(self) -> int:
        return self.data["filled"].shape[1]

    @property
    def obs(self) -> Float[Array, "batch time agent obs"]:
        return self.unpacked("obs")

    @property
    def state(self) -> Float[Array, "batch time state"]:
        return self.unpacked("state")

    @property
    def actions(self) -> Int[Array, "batch time agent"]:
        return self.data["actions"].astype(jnp.int32)

    @property
    def avail_actions(self) -> Bool[Array, "batch time agent action"]:
        return self.data["avail_actions"]

    @property
    def reward(self) -> Float[Array, "batch time agent"]:
        return self.data["reward"]

    @property
    def alive(self) -> Bool[Array, "batch time agent"]:
        return self.data["alive"]

    @property
    def terminated(self) -> Float[Array, "batch time"]:
        return self.data["terminated"].astype(jnp.float32)

    @property
    def filled(self) -> Float[Array, "batch time"]:
        return self.data["filled"].astype(jnp.float32)

    @property
    def last_actions(self) -> Int[Array, "batch time agent"]:
        """The action before each slot; -1 at the start."""
        return jnp.pad(self.actions[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=-1)

    def max_t_filled(self) -> Int[Array, ""]:
        """Steps of the longest episode."""
        return self.data["filled"].sum(-1).max()

    def truncate(self, steps: int) -> EpisodeBatch:
        """Only the first `steps` steps, and the slot after them."""
        return jax.tree.map(lambda x: x[:, : steps + 1], self)


class ReplayBuffer:
    """A ring of the newest `buffer_size` episodes. The arrays are passed in and out: this object only knows shapes.

    How many episodes were ever inserted is the caller's count, the same for every seed trained side by side.
    """

    def __init__(self, scheme: Scheme, groups: Groups, buffer_size: int, max_seq_length: int):
        self.scheme = scheme
        self.groups = groups
        self.buffer_size = buffer_size
        self.max_seq_length = max_seq_length

    def init(self) -> EpisodeBatch:
        whole = {name: f for name, f in self.scheme.items() if f.per_episode}
        steps = {name: f for name, f in self.scheme.items() if not f.per_episode}
        store = EpisodeBatch.zeros(steps, self.groups, self.buffer_size, self.max_seq_length)
        return EpisodeBatch(store.data | EpisodeBatch.zeros(whole, self.groups, self.buffer_size, 1).data, store.scales)

    def bytes_per_episode(self) -> int:
        def size(f: Field) -> int:
            slots = 1 if f.per_episode else self.max_seq_length
            return slots * int(np.prod(shape_of(f, self.groups))) * jnp.dtype(f.dtype).itemsize

        return sum(size(f) for f in self.scheme.values())

    def insert_episode_batch(self, store: EpisodeBatch, batch: EpisodeBatch, episode: Array) -> EpisodeBatch:
        """Overwrites the oldest. The buffer's size is a multiple of the batch's, so a batch never wraps round."""
        at = episode % self.buffer_size

        def put(old: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old, new, at, axis=0)

        return jax.tree.map(put, store, batch)

    def can_sample(self, batch_size: int, episode: Array) -> Bool[Array, ""]:
        return episode >= batch_size

    def sample(self, store: EpisodeBatch, batch_size: int, episode: Array, key: Array) -> EpisodeBatch:
        """`batch_size` different episodes: one drawn from each of `batch_size` equal stretches of the ring."""
        index = self._draw(jnp.minimum(episode, self.buffer_size), batch_size, key)
        return jax.tree.map(lambda x: x[index], store)

    def sample_seats(
        self, store: EpisodeBatch, batch_size: int, episode: Array, key: Array, seats: int, collected: int
    ) -> EpisodeBatch:
        """`batch_size` episodes for every seat, seat after seat.

        Collections of `collected` episodes lie one after the other in the ring, each with an equal stretch per seat.
        """
        worlds = collected // seats
        n = jnp.minimum(episode, self.buffer_size) // seats

        def one(seat: Array, k: Array) -> Array:
            collection, world = jnp.divmod(self._draw(n, batch_size, k), worlds)
            return collection * collected + seat * worlds + world

        index = jax.vmap(one)(jnp.arange(seats), jax.random.split(key, seats)).reshape(-1)
        return jax.tree.map(lambda x: x[index], store)

    @staticmethod
    def _draw(n: Array, batch_size: int, key: Array) -> Int[Array, " batch"]:
        stretch, longer = n // batch_size, n % batch_size
        i = jnp.arange(batch_size)
        low = i * stretch + jnp.minimum(i, longer)
        return jax.random.randint(key, (batch_size,), low, low + stretch + (i < longer))

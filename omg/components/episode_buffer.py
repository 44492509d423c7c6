"""Episodes as arrays: `EpisodeBatch` (all agents), `FocalBatch` (the focal agent in every seat), `ReplayBuffer`."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.multiagentenv import Spec


class Field(NamedTuple):
    """One entry of a scheme: the shape and storage type of one value, and the group it is repeated for, if any."""

    vshape: tuple[int, ...]
    dtype: str = "float32"
    group: str | None = None
    scale: float = 1.0
    per_episode: bool = False
    """One value for a whole episode: its time axis has length one."""


Scheme = dict[str, Field]
Groups = dict[str, int]


def make_scheme(spec: Spec) -> tuple[Scheme, Groups]:
    """The fields of every episode of an environment. Controllers add fields of their own."""
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


def masked_mean(x: Float[Array, "*axes"], mask: Float[Array, "*axes"]) -> Float[Array, ""]:
    """The mean over the entries whose mask is 1; 0 where the mask is all zeros."""
    return (x * mask).sum() / jnp.maximum(mask.sum(), 1.0)


def pick(values: Float[Array, "*axes action"], actions: Int[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The value of the action taken. A product with a one-hot vector is cheaper to differentiate than a gather."""
    return (values * jax.nn.one_hot(actions, values.shape[-1])).sum(-1)


def time_first(x: Array) -> Array:
    """`[batch, time, …]` to `[time, batch, …]` and back. Learners work time first; episodes are stored batch first."""
    return jnp.swapaxes(x, 0, 1)


class EpisodeBatch(eqx.Module):
    """Arrays `[batch, time, …]`. Time step t holds the observation at t, and the action and reward of step t.

    A batch of episodes of at most T steps has T+1 time steps: the last one holds only the final observation. `filled`
    is true where a step was taken, `terminated` where that step ended the game (reaching the time limit does not).
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

    def with_fields(self, **fields: Array) -> EpisodeBatch:
        """The same episodes with more fields."""
        return EpisodeBatch({**self.data, **fields}, self.scales)

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
        """The action before each time step; -1 at the start."""
        return jnp.pad(self.actions[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=-1)

    def max_t_filled(self) -> Int[Array, ""]:
        """Steps of the longest episode."""
        return self.data["filled"].sum(-1).max()

    def truncate(self, steps: int) -> EpisodeBatch:
        """Only the first `steps` steps, and the observation after them."""
        return jax.tree.map(lambda x: x[:, : steps + 1], self)


class FocalBatch(NamedTuple):
    """`[batch, time, seat, …]`: in column k the focal agent sits in seat k, in an episode of its own.

    The other agents of an episode follow in the order of their seats after the focal one. Where a group of k agents
    learns together, every episode has k columns next to each other, one for each of them.
    """

    obs: Float[Array, "batch time seat obs"]
    state: Float[Array, "batch time seat state"]
    avail_actions: Bool[Array, "batch time seat action"]
    actions: Int[Array, "batch time seat"]
    reward: Float[Array, "batch time seat"]
    mean_reward: Float[Array, "batch time seat"]
    """The mean over all agents of the episode."""
    alive: Bool[Array, "batch time seat"]
    terminated: Float[Array, "batch time seat"]
    filled: Float[Array, "batch time seat"]
    others_obs: Float[Array, "batch time seat other obs"]
    others_actions: Int[Array, "batch time seat other"]
    others_alive: Bool[Array, "batch time seat other"]
    prior: Float[Array, "batch seat embedding"]
    seat: Int[Array, "batch seat"] | None = None
    """Which seat the focal agent of a column has."""

    @property
    def last_actions(self) -> Int[Array, "batch time seat"]:
        """The action before each time step; -1 at the start."""
        return jnp.pad(self.actions[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=-1)

    @property
    def mask(self) -> Float[Array, "batch time seat"]:
        """1 where the focal agent took a step while alive."""
        return self.filled * self.alive

    @property
    def shown(self) -> Float[Array, "batch time seat"]:
        """1 where something was seen: at every step, and after the last one."""
        return jnp.concatenate([jnp.ones_like(self.filled[:, :1]), self.filled[:, :-1]], 1)


def refine(batch: EpisodeBatch, n_agents: int, group: tuple[int, ...] = (0,)) -> FocalBatch:
    """`n_agents × B` episodes, ordered by the focal seat, into B rows of `n_agents` columns.

    The field `agent_idx` of an episode says which of its agents was the focal one. `group` are the places after it of
    the agents that learn together; each of them is the focal one of a column.
    """
    episodes, size = batch.batch_size, len(group)
    focal = batch["agent_idx"].astype(jnp.int32) + np.array(group)
    others = (focal[..., None] + np.arange(1, n_agents)) % n_agents

    def chosen(x: Array, seats: Int[Array, "episode agent"]) -> Array:
        return jnp.take_along_axis(x, seats.reshape(episodes, 1, -1, *(1,) * (x.ndim - 3)), axis=2)

    def own(x: Array) -> Array:
        return columns(chosen(x, focal % n_agents))

    def theirs(x: Array) -> Array:
        found = chosen(x, others.reshape(episodes, -1))
        return columns(found.reshape(*x.shape[:2], size, n_agents - 1, *x.shape[3:]))

    def shared(x: Array) -> Array:
        return columns(jnp.broadcast_to(x[:, :, None], (*x.shape[:2], size, *x.shape[2:])))

    def columns(x: Array) -> Array:
        x = jnp.moveaxis(x.reshape(n_agents, episodes // n_agents, *x.shape[1:]), 0, 2)
        return x.reshape(*x.shape[:2], n_agents * size, *x.shape[4:])

    prior = batch["prior"] if "prior" in batch.data else jnp.zeros((episodes, 1, 0))
    return FocalBatch(
        obs=own(batch.obs),
        state=shared(batch.state),
        avail_actions=own(batch.avail_actions),
        actions=own(batch.actions),
        reward=own(batch.reward),
        mean_reward=shared(batch.reward.mean(-1)),
        alive=own(batch.alive),
        terminated=shared(batch.terminated),
        filled=shared(batch.filled),
        others_obs=theirs(batch.obs),
        others_actions=theirs(batch.actions),
        others_alive=theirs(batch.alive),
        prior=shared(prior)[:, 0],
        seat=columns(focal[:, None] % n_agents)[:, 0],
    )


def all_agents(batch: EpisodeBatch, n_agents: int) -> FocalBatch:
    """Every agent of every episode as the focal one of its own column: for a team that learns together."""
    others = (np.arange(n_agents)[:, None] + np.arange(1, n_agents)) % n_agents

    def each(x: Array) -> Array:
        return jnp.broadcast_to(x[:, :, None], (*x.shape[:2], n_agents, *x.shape[2:]))

    return FocalBatch(
        obs=batch.obs,
        state=each(batch.state),
        avail_actions=batch.avail_actions,
        actions=batch.actions,
        reward=batch.reward,
        mean_reward=each(batch.reward.mean(-1)),
        alive=batch.alive,
        terminated=each(batch.terminated),
        filled=each(batch.filled),
        others_obs=batch.obs[:, :, others],
        others_actions=batch.actions[:, :, others],
        others_alive=batch.alive[:, :, others],
        prior=jnp.zeros((batch.batch_size, n_agents, 0)),
        seat=jnp.broadcast_to(jnp.arange(n_agents), (batch.batch_size, n_agents)),
    )


class ReplayBuffer:
    """A ring of the newest `buffer_size` episodes. The arrays are passed in and out; this object holds shapes only.

    The caller counts how many episodes were ever inserted; the count is the same for all seeds of a run.
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
        return store.with_fields(**EpisodeBatch.zeros(whole, self.groups, self.buffer_size, 1).data)

    def bytes_per_episode(self) -> int:
        def size(f: Field) -> int:
            steps = 1 if f.per_episode else self.max_seq_length
            return steps * int(np.prod(shape_of(f, self.groups))) * jnp.dtype(f.dtype).itemsize

        return sum(size(f) for f in self.scheme.values())

    def insert_episode_batch(
        self, store: EpisodeBatch, batch: EpisodeBatch, episode: Array, skip: Array | bool = False
    ) -> EpisodeBatch:
        """Overwrites the oldest episodes. The buffer's size is a multiple of the batch's: a batch never wraps round.

        With `skip` nothing changes (a branch would make the compiler copy the buffer).
        """
        at = episode % self.buffer_size

        def put(old: Array, new: Array) -> Array:
            before = jax.lax.dynamic_slice_in_dim(old, at, new.shape[0], axis=0)
            return jax.lax.dynamic_update_slice_in_dim(old, jnp.where(skip, before, new), at, axis=0)

        return jax.tree.map(put, store, batch)

    def can_sample(self, batch_size: int, episode: Array) -> Bool[Array, ""]:
        return episode >= batch_size

    def sample(self, store: EpisodeBatch, batch_size: int, episode: Array, key: Array) -> EpisodeBatch:
        """`batch_size` different episodes: one sampled from each of `batch_size` equal stretches of the ring."""
        index = self._sample_index(jnp.minimum(episode, self.buffer_size), batch_size, key)
        return jax.tree.map(lambda x: x[index], store)

    def sample_seats(
        self, store: EpisodeBatch, batch_size: int, episode: Array, key: Array, seats: int, collected: int
    ) -> EpisodeBatch:
        """`batch_size` episodes for every focal seat, ordered by seat.

        Collections of `collected` episodes lie one after the other in the ring, each with an equal stretch per seat.
        """
        envs = collected // seats
        n = jnp.minimum(episode, self.buffer_size) // seats

        def one(seat: Array, k: Array) -> Array:
            collection, env = jnp.divmod(self._sample_index(n, batch_size, k), envs)
            return collection * collected + seat * envs + env

        index = jax.vmap(one)(jnp.arange(seats), jax.random.split(key, seats)).reshape(-1)
        return jax.tree.map(lambda x: x[index], store)

    @staticmethod
    def _sample_index(n: Array, batch_size: int, key: Array) -> Int[Array, " batch"]:
        stretch, longer = n // batch_size, n % batch_size
        i = jnp.arange(batch_size)
        low = i * stretch + jnp.minimum(i, longer)
        # Cheaper to compile than integers with a range of their own.
        length = stretch + (i < longer)
        offset = (jax.random.uniform(key, (batch_size,)) * length).astype(jnp.int32)
        return low + jnp.minimum(offset, length - 1)

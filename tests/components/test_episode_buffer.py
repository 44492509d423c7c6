"""The replay buffer: the newest episodes, samples without repetition, lossless compact storage."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.components.episode_buffer import EpisodeBatch, Field, ReplayBuffer, all_agents, pack, refine

SCHEME = {"id": Field((), "int32"), "filled": Field((), "bool"), "seen": Field((2,), "int8", "agents", 0.125)}
GROUPS = {"agents": 3}
RING = ReplayBuffer(SCHEME, GROUPS, 24, 4)
sample_of_ring = jax.jit(RING.sample, static_argnums=1)


def batch_of(ids, steps=4):
    data = EpisodeBatch.zeros(SCHEME, GROUPS, len(ids), steps)
    data.data["id"] = jnp.broadcast_to(jnp.array(ids, jnp.int32)[:, None], (len(ids), steps))
    return data


def filled_with(buffer, n, size=2):
    store, count, insert = buffer.init(), 0, jax.jit(buffer.insert_episode_batch)
    while count < n:
        store = insert(store, batch_of(range(count, count + size)), jnp.int32(count))
        count += size
    return store, count


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 7, 12]), st.integers(2, 60), st.integers(0, 10_000))
def test_a_sample_holds_different_episodes_among_the_newest(batch_size, inserted, seed):
    store, count = filled_with(RING, max(inserted, batch_size))
    ids = np.asarray(sample_of_ring(store, batch_size, jnp.int32(count), jax.random.key(seed))["id"][:, 0])
    assert len(set(ids)) == batch_size
    assert ids.min() >= max(0, count - 24)
    assert ids.max() < count


def test_every_episode_is_sampled_about_equally_often():
    buffer = ReplayBuffer(SCHEME, GROUPS, 24, 4)
    store, count = filled_with(buffer, 24)
    sample = jax.vmap(lambda key: buffer.sample(store, 8, jnp.int32(count), key)["id"][:, 0])
    ids = np.asarray(sample(jax.random.split(jax.random.key(0), 3000)))
    counts = np.bincount(ids.ravel(), minlength=24)
    np.testing.assert_allclose(counts, 1000, rtol=0.15)


def test_the_oldest_episodes_are_overwritten_first():
    buffer = ReplayBuffer(SCHEME, GROUPS, 6, 4)
    store, _ = filled_with(buffer, 10)
    assert sorted(np.asarray(store["id"][:, 0])) == [4, 5, 6, 7, 8, 9]


@settings(deadline=None)
@given(st.lists(st.integers(-1, 100), min_size=6, max_size=6))
def test_compact_storage_is_lossless(numbers):
    seen = jnp.array(numbers, jnp.float32).reshape(3, 2) * 0.125
    batch = EpisodeBatch.zeros(SCHEME, GROUPS, 1, 1)
    batch.data["seen"] = pack(seen, SCHEME["seen"])[None, None]
    assert batch["seen"].dtype == jnp.int8
    np.testing.assert_array_equal(batch.unpacked("seen")[0, 0], seen)


def test_bytes_per_episode_are_the_size_of_the_arrays():
    buffer = ReplayBuffer(SCHEME, GROUPS, 6, 4)
    assert buffer.bytes_per_episode() * 6 == sum(x.nbytes for x in jax.tree.leaves(buffer.init()))


def test_truncating_keeps_the_observation_after_the_last_step():
    assert batch_of([1, 2], steps=9).truncate(5).max_seq_length == 6


def three_agents(focal):
    """One step of one episode per entry of `focal`: observation 100·episode + agent, action and reward the agent."""
    rows, agent = len(focal), np.arange(3)
    of_agents = np.broadcast_to(agent, (rows, 2, 3))
    data = {
        "obs": (100 * np.arange(rows)[:, None, None] + of_agents)[..., None],
        "state": np.zeros((rows, 2, 1)) + np.arange(rows)[:, None, None],
        "avail_actions": of_agents[..., None] == agent,
        "actions": of_agents,
        "reward": of_agents.astype(np.float32),
        "alive": of_agents != 2,
        "terminated": np.broadcast_to([True, False], (rows, 2)),
        "filled": np.broadcast_to([True, False], (rows, 2)),
        "agent_idx": np.array(focal)[:, None],
    }
    return EpisodeBatch({name: jnp.asarray(value) for name, value in data.items()})


def test_a_column_holds_the_focal_agents_data_and_the_others_follow_in_order_of_their_seats():
    """Two episodes for every seat, ordered by seat: row r holds episodes r, r + 2 and r + 4."""
    batch = refine(three_agents([0, 0, 1, 1, 2, 2]), 3)
    assert batch.obs[:, 0, :, 0].tolist() == [[0, 201, 402], [100, 301, 502]]
    assert batch.state[:, 0, :, 0].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert batch.actions[0, 0].tolist() == batch.reward[0, 0].tolist() == [0, 1, 2]
    assert batch.alive[0, 0].tolist() == [True, True, False]
    np.testing.assert_array_equal(batch.avail_actions[0, 0], np.eye(3))
    assert batch.others_actions[0, 0].tolist() == [[1, 2], [2, 0], [0, 1]]
    assert batch.others_obs[1, 0, :, :, 0].tolist() == [[101, 102], [302, 300], [500, 501]]
    assert batch.others_alive[0, 0].tolist() == [[True, False], [False, True], [True, True]]
    assert batch.filled[0, :, 0].tolist() == batch.terminated[0, :, 0].tolist() == [1, 0]
    assert batch.mask[0, 0].tolist() == [1, 1, 0]
    assert batch.last_actions[0, :, 1].tolist() == [-1, 1]


def test_every_agent_of_a_group_that_learns_together_has_a_column_of_its_own():
    """The group are the focal agent and the second one after it: two columns for every episode."""
    batch = refine(three_agents([0, 0, 1, 1, 2, 2]), 3, (0, 2))
    assert batch.obs[:, 0, :, 0].tolist() == [[0, 2, 201, 200, 402, 401], [100, 102, 301, 300, 502, 501]]
    assert batch.state[0, 0, :, 0].tolist() == [0, 0, 2, 2, 4, 4]
    assert batch.filled[0, :, 1].tolist() == [1, 0]
    assert batch.others_actions[0, 0].tolist() == [[1, 2], [0, 1], [2, 0], [1, 2], [0, 1], [2, 0]]
    assert batch.others_obs[0, 0, 3, :, 0].tolist() == [201, 202]
    assert batch.others_alive[0, 0, :2].tolist() == [[True, False], [True, True]]
    assert batch.prior.shape == (2, 6, 0)


def test_every_agent_of_a_team_is_the_focal_agent_of_its_own_column():
    batch = all_agents(three_agents([0]), 3)
    assert batch.obs[0, 0, :, 0].tolist() == [0, 1, 2]
    assert batch.others_actions[0, 0].tolist() == [[1, 2], [2, 0], [0, 1]]
    assert batch.others_obs[0, 0, :, :, 0].tolist() == [[1, 2], [2, 0], [0, 1]]
    assert batch.others_alive[0, 0].tolist() == [[True, False], [False, True], [True, True]]

"""Episodes in replay: none lost, none twice in a sample, nothing changed by how compactly they are kept."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.components.episode_buffer import EpisodeBatch, Field, ReplayBuffer, pack

SCHEME = {"id": Field((), "int32"), "filled": Field((), "bool"), "seen": Field((2,), "int8", "agents", 0.125)}
GROUPS = {"agents": 3}


def batch_of(ids, slots=4):
    data = EpisodeBatch.zeros(SCHEME, GROUPS, len(ids), slots)
    data.data["id"] = jnp.broadcast_to(jnp.array(ids, jnp.int32)[:, None], (len(ids), slots))
    return data


def filled_with(buffer, n, size=2):
    store, count = buffer.init(), 0
    while count < n:
        store = buffer.insert_episode_batch(store, batch_of(range(count, count + size)), jnp.int32(count))
        count += size
    return store, count


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(2, 60), st.integers(0, 10_000))
def test_a_sample_holds_different_episodes_among_the_newest(batch_size, inserted, seed):
    buffer = ReplayBuffer(SCHEME, GROUPS, 24, 4)
    store, count = filled_with(buffer, max(inserted, batch_size))
    ids = np.asarray(buffer.sample(store, batch_size, jnp.int32(count), jax.random.key(seed))["id"][:, 0])
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
def test_compact_storage_gives_back_exactly_what_was_seen(numbers):
    seen = jnp.array(numbers, jnp.float32).reshape(3, 2) * 0.125
    batch = EpisodeBatch.zeros(SCHEME, GROUPS, 1, 1)
    batch.data["seen"] = pack(seen, SCHEME["seen"])[None, None]
    assert batch["seen"].dtype == jnp.int8
    np.testing.assert_array_equal(batch.unpacked("seen")[0, 0], seen)


def test_bytes_per_episode_are_what_the_arrays_take():
    buffer = ReplayBuffer(SCHEME, GROUPS, 6, 4)
    assert buffer.bytes_per_episode() * 6 == sum(x.nbytes for x in jax.tree.leaves(buffer.init()))


def test_truncating_keeps_the_slot_after_the_last_step():
    assert batch_of([1, 2], slots=9).truncate(5).max_seq_length == 6

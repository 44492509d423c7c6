"""The runner records the episodes that were played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.controllers import BasicMAC
from omg.runners import VectorRunner
from tests.conftest import play


@pytest.mark.slow
def test_replaying_the_recorded_actions_gives_the_recorded_episode(foraging):
    batch = play(foraging, 5, seed=1)
    step = jax.jit(foraging.step)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), foraging.spec.episode_limit), 5)
    for b in range(5):
        state, seen = jax.jit(foraging.reset)(keys[b])
        length = int(batch.filled[b].sum())
        for t in range(length):
            np.testing.assert_array_equal(batch.obs[b, t], seen.obs)
            np.testing.assert_array_equal(batch.state[b, t], seen.state)
            np.testing.assert_array_equal(batch.avail_actions[b, t], seen.avail_actions)
            assert all(seen.avail_actions[i, a] for i, a in enumerate(batch.actions[b, t]))
            state, seen = step(state, batch.actions[b, t], jax.random.key(0))
            np.testing.assert_array_equal(batch.reward[b, t], seen.reward)
            assert bool(batch["terminated"][b, t]) == bool(seen.terminated)
        np.testing.assert_array_equal(batch.obs[b, length], seen.obs)
        assert bool(seen.terminated) or length == foraging.spec.episode_limit
        for name, value in batch.data.items():
            assert not np.asarray(value[b, length + 1 :]).any(), f"{name} after the end"


def test_greedy_play_takes_the_best_actions_of_the_unrolled_network(foraging):
    """The unrolled outputs are time first."""
    mac = BasicMAC(foraging.spec, {"rnn_hidden_dim": 4})
    runner = VectorRunner(foraging, mac, *make_scheme(foraging.spec), 4)
    params = jax.jit(mac.init_params)(jax.random.key(5))
    batch, _ = jax.jit(lambda key: runner.run(params, jnp.int32(0), key, True))(jax.random.key(5))
    q = jnp.swapaxes(mac.unroll(params, batch).outputs, 0, 1)
    expected = jnp.where(batch.avail_actions, q, -jnp.inf).argmax(-1)
    filled = np.asarray(batch["filled"])
    np.testing.assert_array_equal(np.asarray(batch.actions)[filled], np.asarray(expected)[filled])


def test_seeds_together_play_the_episodes_they_play_alone(foraging):
    mac, (scheme, groups) = BasicMAC(foraging.spec, {"rnn_hidden_dim": 4}), make_scheme(foraging.spec)
    params = jax.jit(jax.vmap(mac.init_params))(jax.random.split(jax.random.key(0), 3))
    keys = jax.random.split(jax.random.key(1), 3)
    together = VectorRunner(foraging, mac, scheme, groups, 4, n_seeds=3)
    batches, stats = jax.jit(lambda: together.run(params, jnp.zeros(3, jnp.int32), keys, False))()
    alone = VectorRunner(foraging, mac, scheme, groups, 4)
    one = jax.jit(lambda params, key: alone.run(params, jnp.int32(0), key, False))
    for seed in range(3):
        batch, own = one(jax.tree.map(lambda x, s=seed: x[s], params), keys[seed])
        for name in batch.data:
            np.testing.assert_allclose(batches[name][seed], batch[name], rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(stats.lengths[seed], own.lengths)


def test_returns_are_the_sums_of_the_rewards(foraging):
    mac = BasicMAC(foraging.spec, {"rnn_hidden_dim": 4})
    runner = VectorRunner(foraging, mac, *make_scheme(foraging.spec), 4)
    params = jax.jit(mac.init_params)(jax.random.key(0))
    batch, stats = jax.jit(lambda key: runner.run(params, jnp.int32(0), key, False))(jax.random.key(0))
    np.testing.assert_allclose(stats.agent_returns, batch.reward.sum(1), rtol=1e-6)
    np.testing.assert_array_equal(stats.lengths, batch["filled"].sum(1))

"""QMIX is monotonic in the agents' values and has correct gradients; VDN is the sum."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.envs.multiagentenv import Spec
from omg.modules.mixers import QMixer, QMixSettings, VDNMixer

SPEC = Spec("test", n_agents=3, n_actions=2, obs_size=4, state_size=5, episode_limit=3, game_type="cooperative")


def qmixer(seed=0, layers=2):
    return QMixer(SPEC, QMixSettings(8, layers, 8), jax.random.key(seed))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2))
def test_qmix_is_monotonic_in_every_agents_value(seed, layers):
    k_qs, k_state = jax.random.split(jax.random.key(seed))
    qs, state = 5 * jax.random.normal(k_qs, (16, 3)), 3 * jax.random.normal(k_state, (16, 5))
    slopes = jax.grad(lambda qs: qmixer(seed, layers)(qs, state).sum())(qs)
    assert (slopes >= 0).all()
    assert (slopes > 0).any()


def test_qmix_gradients_agree_with_finite_differences():
    with jax.enable_x64(True):
        mixer = jax.tree.map(lambda x: x.astype(jnp.float64), qmixer())
        qs = jax.random.normal(jax.random.key(1), (4, 3), jnp.float64)
        state = jax.random.normal(jax.random.key(2), (4, 5), jnp.float64)

        def value(mixer, qs):
            return (mixer(qs, state) ** 2).sum()

        gradients = jax.grad(value, argnums=(0, 1))(mixer, qs)
        leaves, structure = jax.tree.flatten((mixer, qs))
        for i, (leaf, gradient) in enumerate(zip(leaves, jax.tree.leaves(gradients), strict=True)):
            direction = jax.random.normal(jax.random.key(i), leaf.shape, leaf.dtype)
            ends = []
            for step in (1e-6, -1e-6):
                moved = [x + step * direction if j == i else x for j, x in enumerate(leaves)]
                ends.append(value(*jax.tree.unflatten(structure, moved)))
            np.testing.assert_allclose((gradient * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


def test_vdn_is_the_sum_of_the_agents_values():
    mixer = VDNMixer(SPEC, VDNMixer.Settings(), jax.random.key(0))
    assert mixer(jnp.array([1.0, 2.0, 4.0]), jnp.zeros(5)) == 7.0

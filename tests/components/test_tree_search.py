"""The tree search against mctx, visit by visit, and on small trees with known values."""

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from omg.components.tree_search import Expansion, search

KEY = jax.random.key(0)
W, V, P, Q = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(6, 4, 6), (6,), (6, 4), (6, 4)]))


def random_model(k, action, x):
    """A random environment model with six state features and four actions."""
    after = jnp.tanh(jnp.einsum("rd,dre->re", x, W[:, action]))
    reward = (x @ Q)[jnp.arange(len(action)), action]
    return Expansion(reward, jnp.full(len(action), 0.9), after @ P, after @ V), after


@pytest.mark.parametrize(("simulations", "depth"), [(50, None), (30, 3), (8, 1)])
def test_the_same_visits_and_values_as_mctx(simulations, depth):
    x = jax.random.normal(KEY, (12, 6))
    logits, value = x @ P, x @ V
    ours = jax.jit(lambda: search(x, logits, value, random_model, simulations, KEY, 1.0, depth))()

    def recurrent(_, k, action, x):
        step, after = random_model(k, action, x)
        return mctx.RecurrentFnOutput(**step._asdict()), after

    root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=x)
    exact = {"dirichlet_fraction": 0.0, "pb_c_init": 1.0}
    policy = jax.jit(lambda: mctx.muzero_policy(None, KEY, root, recurrent, simulations, max_depth=depth, **exact))
    theirs = policy().search_tree.summary()
    np.testing.assert_array_equal(ours.visits, theirs.visit_counts)
    np.testing.assert_allclose(ours.q, theirs.qvalues, atol=1e-5)
    np.testing.assert_allclose(ours.value, theirs.value, atol=1e-5)


def test_a_large_delayed_reward_is_found_behind_a_small_immediate_one():
    """The left action gives 1 and ends; the right one gives 0, and then 3."""

    def step(k, action, at):
        reward = jnp.where((at == 0) & (action == 0), 1.0, jnp.where((at == 2) & (action == 1), 3.0, 0.0))
        after = jnp.where(at == 0, 1 + action, 3)
        flat = jnp.zeros((len(action), 2))
        return Expansion(reward, jnp.where(after < 3, 0.9, 0.0), flat, flat[:, 0]), after

    start = (jnp.zeros(1, jnp.int32), jnp.zeros((1, 2)), jnp.zeros(1))
    found = jax.jit(lambda: search(*start, step, 200, KEY, 3.0))()
    assert found.q[0].argmax() == 1
    assert found.q[0, 0] == pytest.approx(1.0)
    assert 2.2 < found.q[0, 1] <= 2.7
    assert found.visits.sum() == 200


def test_an_unavailable_action_is_never_visited():
    x = jax.random.normal(KEY, (5, 6))
    logits = (x @ P).at[:, 2].set(-1e9)
    found = search(x, logits, x @ V, random_model, 40, KEY)
    assert not found.visits[:, 2].any()


def test_no_step_is_taken_after_the_episode_has_ended():
    """The right action ends the episode with reward 1; the left one continues with reward 0."""
    seen = []

    def step(k, action, over):
        jax.debug.callback(lambda x: seen.append(bool(x[0])), over)
        reward = jnp.where((action == 1) & ~over, 1.0, 0.0)
        flat = jnp.zeros((1, 2))
        return Expansion(reward, jnp.where(action == 1, 0.0, 0.9), flat, flat[:, 0]), over | (action == 1)

    found = search(jnp.zeros(1, bool), jnp.zeros((1, 2)), jnp.zeros(1), step, 30, KEY, 1.0)
    jax.effects_barrier()
    assert found.q[0, 1] == 1
    assert found.visits.sum() == 30
    assert not any(seen), "no node is expanded after the end"


def test_every_available_action_of_a_root_is_visited_once_before_any_twice():
    x = jax.random.normal(KEY, (7, 6))
    logits = jnp.zeros((7, 4)).at[:, 0].set(20.0).at[:, 3].set(-1e9)
    found = search(x, logits, x @ V, random_model, 3, KEY, try_all=True)
    np.testing.assert_array_equal(found.visits, np.broadcast_to([1, 1, 1, 0], (7, 4)))

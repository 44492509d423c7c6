"""The tree search against mctx, visit by visit, and on small trees with known values."""

from functools import partial

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from omg.components.tree_search import Expansion, cumulative, search
from tests.helpers import or_slow

KEY = jax.random.key(0)
W, V, P, Q = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(6, 4, 6), (6,), (6, 4), (6, 4)]))


def random_model(k, action, drawn, x):
    """A random environment model with six state features and four actions."""
    after = jnp.tanh(jnp.einsum("rd,dre->re", x, W[:, action]))
    reward = (x @ Q)[jnp.arange(len(action)), action]
    return Expansion(reward, jnp.full(len(action), 0.9), after @ P, after @ V), after


@pytest.mark.parametrize(("simulations", "depth"), or_slow((50, None), (8, 1), slow=[(30, 3)]))
def test_the_same_visits_and_values_as_mctx(simulations, depth):
    x = jax.random.normal(KEY, (12, 6))
    logits, value = x @ P, x @ V
    ours = jax.jit(lambda: search(x, logits, value, random_model, simulations, KEY, 1.0, depth))()

    def recurrent(_, k, action, x):
        step, after = random_model(k, action, None, x)
        given = step._asdict()
        del given["odds"]
        return mctx.RecurrentFnOutput(**given), after

    root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=x)
    exact = {"dirichlet_fraction": 0.0, "pb_c_init": 1.0}
    policy = jax.jit(lambda: mctx.muzero_policy(None, KEY, root, recurrent, simulations, max_depth=depth, **exact))
    theirs = policy().search_tree.summary()
    np.testing.assert_array_equal(ours.visits, theirs.visit_counts)
    np.testing.assert_allclose(ours.q, theirs.qvalues, atol=1e-5)
    np.testing.assert_allclose(ours.value, theirs.value, atol=1e-5)


def test_a_large_delayed_reward_is_found_behind_a_small_immediate_one():
    """The left action gives 1 and ends; the right one gives 0, and then 3."""

    def step(k, action, drawn, at):
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

    def step(k, action, drawn, over):
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


def fair(rows, others=1):
    """The odds of other agents that toss a coin."""
    return jnp.broadcast_to(cumulative(jnp.array([0.5, 0.5])), (rows, others, 2))


def test_luck_is_not_counted_on():
    """Whatever one does, three others toss coins and one wins or loses by them, eight times: the value is 0."""
    rows, actions = 64, 5

    def step(k, action, drawn, t):
        # Each action is paid by another combination of the coins.
        bits = (drawn * jnp.array([1, 2, 4])).sum(-1) ^ action
        reward = jnp.where(jax.lax.population_count(bits) % 2 == 1, 1.0, -1.0)
        flat = jnp.zeros((rows, actions))
        return Expansion(reward, jnp.where(t < 7, 1.0, 0.0), flat, flat[:, 0], fair(rows, 3)), t + 1

    start = (jnp.zeros(rows, jnp.int32), jnp.zeros((rows, actions)), jnp.zeros(rows))
    found = jax.jit(lambda: search(*start, step, 300, KEY, 1.0, 16, odds=fair(rows, 3)))()
    assert abs(found.value.mean()) < 0.3
    assert found.q.max(-1).mean() < 0.3


def test_what_others_do_is_answered_when_it_is_seen_and_not_before():
    """The coin falls with the first action; the second action is paid 1 if it names the coin: the value is 1.

    Paid for naming a coin that falls together with the action, nothing can be won: the value is 0.
    """

    def step(known, k, action, drawn, at):
        t, coin = at
        shown = coin if known else drawn[:, 0]
        reward = jnp.where(t == 1, jnp.where(action == shown, 1.0, -1.0), 0.0)
        flat = jnp.zeros((8, 2))
        return Expansion(reward, jnp.where(t == 0, 1.0, 0.0), flat, flat[:, 0], fair(8)), (t + 1, drawn[:, 0])

    nothing = jnp.zeros(8, jnp.int32)
    start = ((nothing, nothing), jnp.zeros((8, 2)), jnp.zeros(8))
    for known, low, high in ((True, 0.7, 1.0), (False, -0.3, 0.3)):
        model = partial(step, known)
        found = jax.jit(lambda model=model: search(*start, model, 200, KEY, 1.0, odds=fair(8)))()
        assert low < found.value.mean() <= high


def test_the_children_of_an_action_are_kept():
    """Two coins fall at the first step; at the second, the action with their number is paid 1: one needs four children.

    The first visit of a child counts 0, and its four actions are tried before the right one is repeated.
    """

    def step(k, action, drawn, at):
        t, coins = at
        reward = jnp.where((t == 1) & (action == coins), 1.0, 0.0)
        flat = jnp.zeros((8, 4))
        made = (t + 1, drawn @ jnp.array([1, 2]))
        return Expansion(reward, jnp.where(t == 0, 1.0, 0.0), flat, flat[:, 0], fair(8, 2)), made

    nothing = jnp.zeros(8, jnp.int32)
    start = ((nothing, nothing), jnp.zeros((8, 4)).at[:, 1:].set(-1e9), jnp.zeros(8))
    found = jax.jit(lambda: search(*start, step, 100, KEY, 0.5, odds=fair(8, 2)))()
    assert found.value.mean() > (100 - 4 * 4) / 100 - 0.05


def test_every_visit_is_a_draw():
    """An action that another agent answers with 1 in a quarter of the cases is worth a quarter, and with 0 never."""

    def step(k, action, drawn, node):
        flat = jnp.zeros((32, 1))
        return Expansion(drawn[:, 0].astype(float), jnp.zeros(32), flat, flat[:, 0], odds), node

    odds = jnp.broadcast_to(cumulative(jnp.array([0.75, 0.25])), (32, 1, 2))
    start = (jnp.zeros(32), jnp.zeros((32, 1)), jnp.zeros(32))
    found = jax.jit(lambda: search(*start, step, 200, KEY, odds=odds))()
    assert found.q.mean() == pytest.approx(0.25, abs=0.02)
    assert found.q.std() == pytest.approx((0.25 * 0.75 / 200) ** 0.5, rel=0.4)


def test_more_draws_than_places_for_children():
    """Three others with six choices each: 216 draws. The value is the mean of what they pay, not that of a few."""

    def step(k, action, drawn, node):
        flat = jnp.zeros((32, 1))
        return Expansion(drawn.sum(-1).astype(float), jnp.zeros(32), flat, flat[:, 0], odds), node

    odds = jnp.broadcast_to(cumulative(jnp.full(6, 1 / 6)), (32, 3, 6))
    start = (jnp.zeros(32), jnp.zeros((32, 1)), jnp.zeros(32))
    found = jax.jit(lambda: search(*start, step, 300, KEY, odds=odds))()
    assert found.q.mean() == pytest.approx(7.5, abs=0.15)
    assert found.q.std() < 0.3, "the mean of four frozen draws would differ by 1.5 from tree to tree"

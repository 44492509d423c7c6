"""Choosing actions: never one that is unavailable, as often at random as the schedule says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.components.action_selectors import REGISTRY, SelectorSettings
from omg.components.epsilon_schedules import DecayThenFlatSchedule
from omg.components.transforms import OneHot


@pytest.mark.parametrize("name", sorted(REGISTRY))
@settings(deadline=None, max_examples=25)
@given(mask=st.lists(st.booleans(), min_size=5, max_size=5).filter(any), seed=st.integers(0, 1000))
def test_only_available_actions_are_chosen(name, mask, seed):
    selector = REGISTRY[name](SelectorSettings())
    avail = jnp.array(mask)
    outputs = jnp.where(avail, 0.2, 0.9) if name == "epsilon_greedy" else jnp.where(avail, 1 / sum(mask), 0.0)
    for test_mode in (False, True):
        action = selector.select_action(outputs, avail, jnp.int32(0), jax.random.key(seed), test_mode)
        assert mask[int(action)]


def test_epsilon_greedy_explores_as_often_as_epsilon_says():
    selector = REGISTRY["epsilon_greedy"](SelectorSettings(epsilon_start=0.4, epsilon_finish=0.4))
    outputs = jnp.tile(jnp.array([0.0, 1.0, 0.0, 0.0]), (20_000, 1))
    actions = selector.select_action(outputs, jnp.ones_like(outputs, bool), jnp.int32(0), jax.random.key(0), False)
    # The best action, or by chance one of four: 0.6 + 0.4 / 4.
    np.testing.assert_allclose((actions == 1).mean(), 0.7, atol=0.015)


def test_multinomial_draws_in_proportion():
    selector = REGISTRY["multinomial"](SelectorSettings())
    chances = jnp.tile(jnp.array([0.1, 0.6, 0.3]), (20_000, 1))
    actions = selector.select_action(chances, jnp.ones_like(chances, bool), jnp.int32(0), jax.random.key(0), False)
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 20_000, [0.1, 0.6, 0.3], atol=0.015)


def test_schedules_reach_both_ends():
    linear = DecayThenFlatSchedule(1.0, 0.05, 1000)
    assert [round(float(linear.eval(t)), 4) for t in (0, 500, 1000, 5000)] == [1.0, 0.525, 0.05, 0.05]
    exponential = DecayThenFlatSchedule(1.0, 0.05, 1000, "exp")
    values = [float(exponential.eval(t)) for t in (0, 500, 1000, 5000)]
    assert values[0] == 1.0
    assert values[1] == pytest.approx(0.05**0.5, rel=1e-4)
    assert values[2:] == pytest.approx([0.05, 0.05], rel=1e-4)


def test_one_hot_of_no_action_is_nothing():
    np.testing.assert_array_equal(OneHot(3).transform(jnp.array([-1, 2])), [[0, 0, 0], [0, 0, 1]])

"""Action selectors: only available actions, the exploration rate of the schedule, and the schedule's known values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.components.action_selectors import REGISTRY, ActionSelector, SelectorSettings


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


def test_epsilon_greedy_explores_with_probability_epsilon():
    selector = REGISTRY["epsilon_greedy"](SelectorSettings(epsilon_start=0.4, epsilon_finish=0.4))
    outputs = jnp.tile(jnp.array([0.0, 1.0, 0.0, 0.0]), (20_000, 1))
    actions = selector.select_action(outputs, jnp.ones_like(outputs, bool), jnp.int32(0), jax.random.key(0), False)
    # The best action, or a uniform sample of four: 0.6 + 0.4 / 4.
    np.testing.assert_allclose((actions == 1).mean(), 0.7, atol=0.015)


def test_multinomial_samples_in_proportion_to_the_probabilities():
    selector = REGISTRY["multinomial"](SelectorSettings())
    pi = jnp.tile(jnp.array([0.1, 0.6, 0.3]), (20_000, 1))
    actions = selector.select_action(pi, jnp.ones_like(pi, bool), jnp.int32(0), jax.random.key(0), False)
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 20_000, [0.1, 0.6, 0.3], atol=0.015)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_tests_are_greedy_also_where_the_test_flag_is_an_array(name):
    """One compiled program serves training and tests; without `test_greedy` tests explore."""
    outputs = jnp.tile(jnp.array([0.3, 0.6, 0.1]), (2000, 1))
    avail = jnp.ones_like(outputs, bool)
    for test_mode in (True, jnp.asarray(True)):
        greedy = REGISTRY[name](SelectorSettings(epsilon_finish=0.5))
        assert (greedy.select_action(outputs, avail, jnp.int32(0), jax.random.key(0), test_mode) == 1).all()
        explores = REGISTRY[name](SelectorSettings(epsilon_finish=0.6, test_greedy=False))
        actions = explores.select_action(outputs, avail, jnp.int32(0), jax.random.key(0), test_mode)
        # ε-greedy: 0.4 + 0.6 / 3; multinomial: the probability itself.
        np.testing.assert_allclose((actions == 1).mean(), 0.6, atol=0.04)


def test_the_schedule_falls_from_start_to_finish_and_stays():
    def epsilon(**changes):
        selector = ActionSelector(SelectorSettings(1.0, 0.05, 1000, **changes))
        return [float(selector.epsilon(t)) for t in (0, 500, 1000, 5000)]

    assert [round(value, 4) for value in epsilon()] == [1.0, 0.525, 0.05, 0.05]
    exponential = epsilon(epsilon_decay="exp")
    assert exponential[0] == 1.0
    assert exponential[1] == pytest.approx(0.05**0.5, rel=1e-4)
    assert exponential[2:] == pytest.approx([0.05, 0.05], rel=1e-4)


def test_a_schedule_of_no_duration_has_ended_after_one_step():
    selector = ActionSelector(SelectorSettings(1.0, 0.1, 0))
    assert [round(float(selector.epsilon(t)), 4) for t in (0, 1)] == [1.0, 0.1]

"""Beliefs: Bayes' rule by hand, impossible evidence, closed goals, and forgetting across episodes."""

import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.beliefs import across, spread, within

OPEN = jnp.ones(3, bool)


def test_bayes_rule_by_hand():
    belief = within(jnp.array([0.5, 0.3, 0.2]), jnp.array([0.1, 0.6, 0.3]), OPEN)
    np.testing.assert_allclose(belief, np.array([0.05, 0.18, 0.06]) / 0.29, rtol=1e-6)


def test_two_updates_equal_one_with_the_product_of_likelihoods():
    prior, first, second = jnp.array([0.2, 0.3, 0.5]), jnp.array([0.4, 0.5, 0.1]), jnp.array([0.3, 0.2, 0.9])
    np.testing.assert_allclose(
        within(within(prior, first, OPEN), second, OPEN), within(prior, first * second, OPEN), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("likelihood", "is_open", "expected"),
    [
        ([0, 0, 0], [1, 1, 1], [0.5, 0.3, 0.2]),
        ([0, 0, 0], [0, 1, 1], [0, 0.6, 0.4]),
        ([1, 0, 0], [0, 1, 1], [0, 0.6, 0.4]),
        ([0, 1, 0], [1, 1, 1], [0, 1, 0]),
        ([1e-30, 1e-30, 0], [1, 1, 1], [0.625, 0.375, 0]),
    ],
    ids=["all likelihoods zero", "all zero, one goal closed", "only a closed goal likely", "one goal likely", "tiny"],
)
def test_beliefs_stay_normalised_under_any_evidence(likelihood, is_open, expected):
    belief = within(jnp.array([0.5, 0.3, 0.2]), jnp.array(likelihood, float), jnp.array(is_open, bool))
    np.testing.assert_allclose(belief, expected, rtol=1e-4, atol=1e-6)


def test_without_probability_on_open_goals_the_belief_is_uniform_over_them():
    belief = within(jnp.array([1.0, 0, 0]), jnp.ones(3), jnp.array([False, True, True]))
    np.testing.assert_allclose(belief, [0, 0.5, 0.5])


def test_the_prior_forgets_earlier_episodes_at_rate_alpha():
    start = jnp.array([0.5, 0.5])
    prior = start
    for episode in range(1, 6):
        prior = across(prior, jnp.array([0.0, 1.0]), 0.7)
        # After K episodes the weight of the first prior is α^K.
        np.testing.assert_allclose(prior[0], 0.5 * 0.7**episode, rtol=1e-5)
        np.testing.assert_allclose(prior.sum(), 1, rtol=1e-6)
    uncertain = across(start, jnp.array([0.2, 0.8]), 0.7)
    np.testing.assert_allclose(
        uncertain, [0.35 + 0.06, 0.35 + 0.24], rtol=1e-6, err_msg="probabilities, not only certain goals"
    )


def test_the_probability_of_a_goal_type_is_split_over_its_open_goals():
    type_of = jnp.array([0, 0, 1, 2])
    prior = jnp.array([0.6, 0.3, 0.1])
    np.testing.assert_allclose(spread(prior, type_of, jnp.ones(4, bool)), [0.3, 0.3, 0.3, 0.1], rtol=1e-6)
    one_closed = spread(prior, type_of, jnp.array([False, True, True, True]))
    np.testing.assert_allclose(one_closed, [0, 0.6, 0.3, 0.1], rtol=1e-6)
    type_closed = spread(prior, type_of, jnp.array([True, True, False, True]))
    np.testing.assert_allclose(type_closed, np.array([0.3, 0.3, 0, 0.1]) / 0.7, rtol=1e-6)

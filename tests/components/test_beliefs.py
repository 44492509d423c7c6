"""Beliefs: Bayes' rule by hand, impossible evidence, closed goals, and forgetting across episodes."""

import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.beliefs import across, close, spread, within


def test_bayes_rule_by_hand():
    belief = within(jnp.array([0.5, 0.3, 0.2]), jnp.array([0.1, 0.6, 0.3]))
    np.testing.assert_allclose(belief, np.array([0.05, 0.18, 0.06]) / 0.29, rtol=1e-6)


def test_two_updates_equal_one_with_the_product_of_likelihoods():
    prior, first, second = jnp.array([0.2, 0.3, 0.5]), jnp.array([0.4, 0.5, 0.1]), jnp.array([0.3, 0.2, 0.9])
    np.testing.assert_allclose(within(within(prior, first), second), within(prior, first * second), rtol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [([0, 0, 0], [0.5, 0.3, 0.2]), ([0, 1, 0], [0, 1, 0]), ([1e-30, 1e-30, 0], [0.625, 0.375, 0])],
    ids=["all likelihoods zero", "one goal likely", "tiny"],
)
def test_beliefs_stay_normalised_under_any_evidence(likelihood, expected):
    belief = within(jnp.array([0.5, 0.3, 0.2]), jnp.array(likelihood, float))
    np.testing.assert_allclose(belief, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("belief", "is_open", "expected"),
    [
        ([0.6, 0.1, 0.2, 0.1], [1, 1, 1, 1], [0.6, 0.1, 0.2, 0.1]),
        ([0.6, 0.1, 0.2, 0.1], [0, 1, 1, 1], [0, 0.3, 0.6, 0.1]),
        ([0.9, 0, 0, 0.1], [0, 1, 1, 1], [0, 0.45, 0.45, 0.1]),
        ([0.5, 0.2, 0.1, 0.2], [0, 0, 0, 1], [0, 0, 0, 1]),
        ([0.5, 0.2, 0.1, 0.2], [1, 1, 1, 0], [0.625, 0.25, 0.125, 0]),
        ([0, 0, 0, 1], [1, 1, 0, 0], [0.5, 0.5, 0, 0]),
    ],
    ids=["nothing closed", "a hare taken", "the only likely hare", "all hares", "the stag", "no belief left"],
)
def test_the_belief_in_a_closed_goal_moves_to_its_type_first(belief, is_open, expected):
    """Three hares and a stag."""
    found = close(jnp.array(belief, float), jnp.array(is_open, bool), jnp.array([0, 0, 0, 1]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


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

"""Beliefs: Bayes' rule by hand, nothing lost under impossible evidence, and forgetting from episode to episode."""

import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.beliefs import across, spread, within

OPEN = jnp.ones(3, bool)


def test_bayes_by_hand():
    belief = within(jnp.array([0.5, 0.3, 0.2]), jnp.array([0.1, 0.6, 0.3]), OPEN)
    np.testing.assert_allclose(belief, np.array([0.05, 0.18, 0.06]) / 0.29, rtol=1e-6)


def test_two_steps_are_one_with_the_product():
    prior, first, second = jnp.array([0.2, 0.3, 0.5]), jnp.array([0.4, 0.5, 0.1]), jnp.array([0.3, 0.2, 0.9])
    np.testing.assert_allclose(
        within(within(prior, first, OPEN), second, OPEN), within(prior, first * second, OPEN), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("likelihood", "still_open", "expected"),
    [
        ([0, 0, 0], [1, 1, 1], [0.5, 0.3, 0.2]),
        ([0, 0, 0], [0, 1, 1], [0, 0.6, 0.4]),
        ([1, 0, 0], [0, 1, 1], [0, 0.6, 0.4]),
        ([0, 1, 0], [1, 1, 1], [0, 1, 0]),
        ([1e-30, 1e-30, 0], [1, 1, 1], [0.625, 0.375, 0]),
    ],
    ids=["explained by nothing", "and one is closed", "only by a closed one", "by one alone", "by very little"],
)
def test_beliefs_stay_normalised_whatever_happens(likelihood, still_open, expected):
    belief = within(jnp.array([0.5, 0.3, 0.2]), jnp.array(likelihood, float), jnp.array(still_open, bool))
    np.testing.assert_allclose(belief, expected, rtol=1e-4, atol=1e-6)


def test_when_everything_believed_is_closed_all_open_goals_are_as_likely():
    belief = within(jnp.array([1.0, 0, 0]), jnp.ones(3), jnp.array([False, True, True]))
    np.testing.assert_allclose(belief, [0, 0.5, 0.5])


def test_the_prior_forgets_at_rate_alpha():
    start = jnp.array([0.5, 0.5])
    prior = start
    for episode in range(1, 6):
        prior = across(prior, jnp.array([0.0, 1.0]), 0.7)
        # What is left of the start after K episodes is α^K of it.
        np.testing.assert_allclose(prior[0], 0.5 * 0.7**episode, rtol=1e-5)
        np.testing.assert_allclose(prior.sum(), 1, rtol=1e-6)
    unsure = across(start, jnp.array([0.2, 0.8]), 0.7)
    np.testing.assert_allclose(unsure, [0.35 + 0.06, 0.35 + 0.24], rtol=1e-6, err_msg="chances count as chances")


def test_a_kinds_part_goes_to_its_open_goals():
    kind_of = jnp.array([0, 0, 1, 2])
    prior = jnp.array([0.6, 0.3, 0.1])
    np.testing.assert_allclose(spread(prior, kind_of, jnp.ones(4, bool)), [0.3, 0.3, 0.3, 0.1], rtol=1e-6)
    one_gone = spread(prior, kind_of, jnp.array([False, True, True, True]))
    np.testing.assert_allclose(one_gone, [0, 0.6, 0.3, 0.1], rtol=1e-6)
    kind_gone = spread(prior, kind_of, jnp.array([True, True, False, True]))
    np.testing.assert_allclose(kind_gone, np.array([0.3, 0.3, 0, 0.1]) / 0.7, rtol=1e-6)

"""Opponent shaping: expected payoffs against play by hand, and what an opponent learns from strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.envs import make
from omg.envs.shaping_game import CHOICES
from omg.envs.strategies import NAMED, table_of
from omg.utils.settings import UserError
from tests.helpers import learn


@pytest.fixture(scope="module")
def game():
    return make("shaping")


def strategy(name):
    return jnp.asarray(table_of(NAMED[name]), jnp.float32)


@pytest.mark.parametrize(
    ("own", "theirs", "payoffs"),
    [
        ("tit_for_tat", "always_defect", ((0 + 19 * 1) / 20, (5 + 19 * 1) / 20)),
        ("tit_for_tat", "tit_for_tat", (3, 3)),
        ("tit_for_tat", "suspicious_tit_for_tat", (2.5, 2.5)),
        ("alternate", "always_cooperate", (4, 1.5)),
    ],
)
def test_expected_payoffs_are_those_of_the_game(game, own, theirs, payoffs):
    found = jax.jit(game.expected)(strategy(own), strategy(theirs))
    np.testing.assert_allclose(found, payoffs, rtol=1e-5)


def test_an_opponent_learns_to_cooperate_with_tit_for_tat_and_to_defect_otherwise(game):
    def after(name):
        action = int(np.flatnonzero((table_of(NAMED[name]) == CHOICES).all(1))[0])
        state, shown = game.reset(jax.random.key(1))
        step = jax.jit(game.step)
        for _ in range(game.spec.episode_limit):
            state, shown = step(state, jnp.array([action]), jax.random.key(0))
        assert shown.terminated
        return float(shown.reward[0])

    assert after("tit_for_tat") > 2.9
    assert after("always_defect") < 1.05


def test_only_games_of_two_agents_with_two_actions(game):
    with pytest.raises(UserError, match="two agents"):
        make("shaping", payoffs=[[1, 2], [3, 4]])


@pytest.mark.slow
def test_a_learner_shapes_its_opponent_and_earns_more_than_mutual_cooperation():
    """M-FOS extorts a naive learner: more than the 3 per round that both get by cooperating (two seeds)."""
    returns = learn("ppo", "shaping", t_max=400_000, seeds=2, test_nepisode=64)
    assert min(returns) > 1.05 * 3 * 50

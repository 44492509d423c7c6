"""Opponent shaping: payoffs against play by hand and JaxMARL's coin game; what an opponent learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.envs import make
from omg.envs.shaping_coins import BEHIND, Coins, decided, move
from omg.envs.strategies import NAMED, table_of
from omg.utils.settings import UserError
from tests.helpers import learn

COIN_STRATEGIES = {"own_coins": (0, 0, 0), "every_coin": (1, 1, 1), "retaliate": (0, 0, 1), "extort": (0, 1, 1)}
"""Whether to defect while ahead (having taken more of the other's coins), even, and behind."""


@pytest.fixture(scope="module")
def game():
    return make("shaping")


@pytest.fixture(scope="module")
def coins():
    return make("shaping_coins", at_once=64)


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


def end_of(env, strategy):
    """The last time step of an episode in which the agent keeps a strategy."""
    action = int(np.flatnonzero((np.array(strategy) == env.choices).all(1))[0])

    def one(state, key):
        return env.step(state, jnp.array([action]), key)

    @jax.jit
    def episode(key):
        return jax.lax.scan(one, env.reset(key)[0], jax.random.split(key, env.spec.episode_limit))[1]

    steps = episode(jax.random.key(1))
    assert steps.terminated.tolist() == [False] * (env.spec.episode_limit - 1) + [True]
    return jax.tree.map(lambda x: x[-1], steps)


def test_an_opponent_learns_to_cooperate_with_tit_for_tat_and_to_defect_otherwise(game):
    assert end_of(game, table_of(NAMED["tit_for_tat"])).reward[0] > 2.9
    assert end_of(game, table_of(NAMED["always_defect"])).reward[0] < 1.05


def test_only_games_of_two_agents_with_two_actions(game):
    with pytest.raises(UserError, match="two agents"):
        make("shaping", payoffs=[[1, 2], [3, 4]])


def test_the_coin_games_rewards_and_moves_are_jaxmarls():
    """From 200 random places, with both players cooperating or defecting: JaxMARL's game, given the same moves."""
    theirs = make("coin_game").game
    _, reference = theirs.reset(jax.random.key(0))
    moves = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])

    @jax.vmap
    def both(key):
        k_places, k_modes, k_move = jax.random.split(key, 3)
        places = jax.random.randint(k_places, (2, 2, 2), 0, 3)
        defects = jax.random.bernoulli(k_modes, shape=(2,))
        new, rewards = move(Coins(places[0], places[1], jnp.int32(0), defects, jnp.array(True)), k_move)
        actions = ((new.players - places[0])[:, None] % 3 == moves % 3).all(-1).argmax(-1)
        where = dict(
            zip(("red_pos", "blue_pos", "red_coin_pos", "blue_coin_pos"), (*places[0], *places[1]), strict=True)
        )
        named = dict(zip(theirs.agents, actions, strict=True))
        _, state, paid, _, _ = theirs.step_env(key, reference.replace(**where), named)
        moved = jnp.stack([state.red_pos, state.blue_pos])
        return rewards, jnp.stack([paid[a] for a in theirs.agents]), new.players, moved

    ours, paid, players, moved = both(jax.random.split(jax.random.key(1), 200))
    np.testing.assert_array_equal(ours, paid)
    np.testing.assert_array_equal(players, moved)
    assert {-2.0, -1.0, 0.0, 1.0} <= set(np.ravel(ours).tolist())


@pytest.mark.parametrize(("other_coin", "around"), [((1, 0), (0, 1)), ((0, 1), (1, 0))])
def test_a_player_that_cooperates_walks_around_the_others_coin_and_one_that_defects_takes_it(other_coin, around):
    """The own coin is two steps away, the other player's is one step away, on one of the two shortest paths."""
    places = jnp.array([[0, 0], [2, 2]]), jnp.array([[1, 1], other_coin])
    for defects, cell, reward in ((False, around, 0), (True, other_coin, 1)):
        state = Coins(*places, jnp.int32(0), jnp.array([defects, False]), jnp.array(False))
        new, rewards = move(state, jax.random.key(0))
        assert tuple(map(int, new.players[0])) == cell
        assert (int(rewards[0]), int(new.balance)) == (reward, -reward)


def test_players_decide_again_only_when_a_coin_was_taken():
    places, defects = jnp.zeros((2, 2), jnp.int32), jnp.array([True, False])
    for decide, expected in ((False, [True, False]), (True, [False, True])):
        state = Coins(places, places, jnp.int32(0), defects, jnp.array(decide))
        assert decided(state, jnp.array([0.0, 1.0]), jax.random.key(0)).tolist() == expected


def test_an_opponent_that_defects_when_behind_takes_the_coins_of_an_agent_that_went_ahead(coins):
    """The agent takes the other's coins while the numbers are even: an opponent that retaliates costs it more coins
    than one that defects while ahead."""
    agent, keys = jnp.array([0.0, 1.0, 0.0]), jax.random.split(jax.random.key(4), 64)

    @jax.jit
    def mean_return(strategy):
        logits = 40 * jnp.asarray(strategy, jnp.float32) - 20
        return jax.vmap(lambda k: coins.game(agent, logits, k)[0][:, 0].sum())(keys).mean()

    assert mean_return(COIN_STRATEGIES["retaliate"]) < mean_return((1, 0, 0)) - 2


def test_an_opponent_learns_to_leave_the_coins_of_an_agent_that_retaliates(coins):
    ends = {name: end_of(coins, choice) for name, choice in COIN_STRATEGIES.items()}
    assert ends["retaliate"].reward[0] > 17.5, "19.4 if both leave the other's coins"
    assert ends["every_coin"].reward[0] < 13
    assert ends["own_coins"].reward[0] < 6, "the opponent learns that nothing happens"
    assert ends["extort"].reward[0] > ends["retaliate"].reward[0]


def test_the_opponents_gradient_is_that_of_its_expected_return(coins):
    """The policy gradient, averaged over 100 samples, against differences of mean returns along one logit."""
    own, logits, d = jnp.array([0.0, 0.5, 1.0]), jnp.array([0.3, -0.2, 0.1]), 0.5
    keys = jax.random.split(jax.random.key(2), 100)
    gradient = jax.jit(jax.vmap(lambda k: coins.play(own, logits, k)[0]))(keys).mean(0)

    @jax.jit
    def mean_return(logits):
        many = jax.random.split(jax.random.key(3), 8_000)
        return jax.vmap(lambda k: coins.game(own, logits, k)[0][:, 1].sum())(many).mean()

    for i in range(BEHIND + 1):
        step = d * jax.nn.one_hot(i, 3)
        difference = (mean_return(logits + step) - mean_return(logits - step)) / (2 * d)
        np.testing.assert_allclose(gradient[i], difference, atol=0.2)


@pytest.mark.slow
def test_a_learner_shapes_its_opponent_and_earns_more_than_mutual_cooperation():
    """M-FOS extorts a naive learner: more than the 3 per round that both get by cooperating (two seeds)."""
    returns = learn("ppo", "shaping", t_max=400_000, seeds=2, test_nepisode=64)
    assert min(returns) > 1.05 * 3 * 50


@pytest.mark.slow
def test_a_learner_earns_more_coins_than_with_any_fixed_strategy_and_than_by_mutual_cooperation():
    """970 are 50 games in which both leave the other's coins; always the best strategy earns 954 (two seeds)."""
    returns = learn("ppo", "shaping_coins", t_max=150_000, seeds=2, test_nepisode=64)
    assert min(returns) > 975

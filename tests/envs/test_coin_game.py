"""The coin game: goals that are the same for both players, and scripted players."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.envs.coin_game import BLUE, MOVES, RED, offset, places_in
from omg.opponents import REGISTRY as SCRIPTED

RIGHT, LEFT, UP, DOWN, STAY = range(5)
KEY = jax.random.key(0)
POLICIES = ("own_coin", "nearest_coin", "other_coin", "retaliate")


@pytest.fixture(scope="module")
def game():
    return make("coin_game")


@pytest.fixture(scope="module")
def placed(game):
    """The environment state with both players and both coins in given cells."""
    state, _ = game.reset(KEY)

    def place(red, blue, red_coin, blue_coin):
        inner, *rest = state.game
        cells = {"red_pos": red, "blue_pos": blue, "red_coin_pos": red_coin, "blue_coin_pos": blue_coin}
        inner = inner.replace(**{name: jnp.array(cell) for name, cell in cells.items()})
        return state._replace(game=(inner, *rest))

    return place


def seen(game, state):
    """What both players observe in a state: JaxMARL's layers, and the colour."""
    obs = game.game.get_obs(state.game[0])
    return jnp.stack([jnp.append(obs[a].ravel(), i) for i, a in enumerate(game.agents)]).astype(jnp.float32)


def test_a_player_takes_the_coin_it_steps_on(game, placed):
    step = jax.jit(game.step)
    state = placed([0, 0], [2, 2], [0, 1], [1, 2])
    after, timestep = step(state, jnp.array([RIGHT, DOWN]), KEY)
    assert game.goals(after).reached.tolist() == [0, 1], "both took their own coin"
    np.testing.assert_allclose(timestep.reward, [1, 1])
    after, timestep = step(state, jnp.array([STAY, STAY]), KEY)
    assert game.goals(after).reached.tolist() == [-1, -1]
    after, timestep = step(placed([0, 0], [2, 2], [2, 1], [0, 2]), jnp.array([LEFT, LEFT]), KEY)
    assert game.goals(after).reached.tolist() == [1, 0], "each took the other's coin, red around the edge of the board"
    np.testing.assert_allclose(timestep.reward, [-1, -1])
    assert game.goals(after).open.all()
    assert timestep.obs[:, -1].tolist() == [0, 1], "an observation ends with the colour"
    inner, *rest = state.game
    last = state._replace(game=(inner.replace(step=jnp.int32(9)), *rest))
    after, timestep = step(last, jnp.array([RIGHT, DOWN]), KEY)
    assert game.goals(after).reached.tolist() == [0, 1]
    np.testing.assert_allclose(timestep.reward, 0, err_msg="JaxMARL pays nothing in the last step of a game")
    assert after.game[0].step == 0, "another game has begun"


def test_goals_are_the_same_coins_for_both_players(game, placed):
    obs = seen(game, placed([0, 0], [1, 1], [0, 1], [2, 2]))
    # Offset, distance and own colour; goals are the red and the blue coin. The board wraps around.
    red, blue = game.goal_features(obs)
    np.testing.assert_array_equal(red, [[0, 1, 1, 1], [-1, -1, 2, 0]])
    np.testing.assert_array_equal(blue, [[-1, 0, 1, 0], [1, 1, 2, 1]])
    np.testing.assert_array_equal(game.goal_distance(obs), [[1, 2], [1, 2]])


def test_players_and_coins_in_one_cell_are_all_seen(game, placed):
    picture = np.asarray(game.render(placed([1, 1], [1, 1], [1, 1], [1, 1])))
    middle = picture[41:80, 41:80].reshape(-1, 3)
    red, blue = ((middle == colour).all(1).sum() for colour in (RED, BLUE))
    disc_and_coin = np.pi * (9**2 + 6**2)
    assert 0.7 * disc_and_coin < red < 1.2 * disc_and_coin
    assert 0.7 * disc_and_coin < blue < 1.2 * disc_and_coin


def test_scripted_players_walk_to_the_coin_that_is_their_goal(game):
    boards = jax.random.randint(KEY, (300, 4, 2), 0, 3)
    layers = jax.nn.one_hot(boards[..., 0] * 3 + boards[..., 1], 9, axis=1)
    obs = jnp.concatenate([layers.reshape(300, -1), jnp.arange(300)[:, None] % 2], 1)
    places = places_in(obs)
    own, others = (np.asarray(abs(offset(places.me, coin)).sum(-1)) for coin in (places.own_coin, places.others_coin))
    to_others = {"own_coin": own < 0, "other_coin": own >= 0, "nearest_coin": others < own}
    for name, others_coin in to_others.items():
        policy = SCRIPTED["coin_game"][name](game.spec)
        act = jax.vmap(partial(policy, avail_actions=jnp.ones(5, bool), seat=0))
        actions = act(obs, key=jax.random.split(KEY, 300))
        goals = jax.vmap(policy.goal)(obs)
        np.testing.assert_array_equal(goals == 1 - places.colour, others_coin)
        target = jnp.where(others_coin[:, None], places.others_coin, places.own_coin)
        avoided = jnp.where(others_coin[:, None], places.own_coin, places.others_coin)
        after = (places.me + jnp.asarray(MOVES)[actions]) % 3
        arrived = (after == target).all(-1)
        assert not ((after == avoided).all(-1) & ~arrived).any(), f"{name} steps on the other coin"
        before = abs(offset(places.me, target)).sum(-1)
        assert (abs(offset(after, target)).sum(-1) <= before).all()
        assert arrived[before == 1].all()


def test_retaliation_takes_coins_only_from_those_who_took_some(game):
    mac = ScriptedMAC(game.spec, *(SCRIPTED["coin_game"][name](game.spec) for name in POLICIES))

    def play(pair, key):
        def step(carry, key):
            state, timestep, memory = carry
            keys = jax.random.split(key, 3)
            acts = [
                mac.decide(pair[i], memory[i], timestep.obs[i], timestep.avail_actions[i], jnp.int32(i), keys[i])
                for i in range(2)
            ]
            state, timestep = game.step(state, jnp.stack([a for a, _ in acts]), keys[2])
            return (state, timestep, jnp.stack([m for _, m in acts])), state.took

        start = (*game.reset(key), jnp.zeros(2, jnp.int32))
        _, took = jax.lax.scan(step, start, jax.random.split(key, 100))
        return (took == jnp.array([1, 0])).sum(0)  # coins of the other colour

    number = {name: i for i, name in enumerate(POLICIES)}
    pairs = [("retaliate", "own_coin"), ("retaliate", "nearest_coin"), ("own_coin", "nearest_coin")]
    indices = jnp.array([[number[name] for name in pair] for pair in pairs])
    stolen = jax.jit(jax.vmap(lambda pair: jax.vmap(partial(play, pair))(jax.random.split(KEY, 64)).mean(0)))(indices)
    with_own, with_nearest, own = np.asarray(stolen)
    assert own[0] == 0, "own_coin never takes the other player's"
    assert with_own[0] < 3, "a few by mistake, when JaxMARL begins another of ten games"
    assert with_nearest[0] > 10
    assert with_nearest[1] > 20

"""Stag hunt and snowdrift: steps computed by hand, and the scripted policies of the stag hunt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.envs.snowdrift import Snow
from omg.envs.stag_hunt import Hunt
from omg.opponents import REGISTRY as SCRIPTED
from omg.runners import VectorRunner
from omg.utils.settings import UserError

STAY, UP, DOWN, LEFT, RIGHT = range(5)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def hunt():
    return make("stag_hunt", grid_size=5, hunters=3, hares=1, stags=1)


def placed(hunters, prey, hunting=(True, True, True), there=(True, True)):
    """A board with one hare and one stag, in this order."""
    return Hunt(
        jnp.array(hunters), jnp.array(prey), jnp.array(hunting), jnp.array(there), jnp.full(3, -1), jnp.int32(0)
    )


def test_two_hunters_on_a_stag_share_its_reward_and_leave(hunt):
    before = placed([[0, 0], [0, 2], [4, 4]], [[4, 0], [0, 1]])
    after, timestep = hunt.step(before, jnp.array([RIGHT, LEFT, STAY]), KEY)
    np.testing.assert_allclose(timestep.reward, [5, 5, 0])
    assert timestep.alive.tolist() == [False, False, True]
    assert after.there.tolist() == [True, False]
    assert hunt.goals(after).reached.tolist() == [1, 1, -1]
    assert not timestep.terminated, "the third hunter continues"
    assert timestep.info["stags"] == 1
    assert timestep.info["hares"] == 0


def test_one_hunter_cannot_catch_a_stag_and_can_wait_for_another(hunt):
    before = placed([[0, 0], [0, 3], [4, 4]], [[4, 0], [0, 1]])
    alone, timestep = hunt.step(before, jnp.array([RIGHT, LEFT, STAY]), KEY)
    np.testing.assert_allclose(timestep.reward, 0)
    assert timestep.alive.all()
    _, timestep = hunt.step(alone, jnp.array([STAY, LEFT, STAY]), KEY)
    np.testing.assert_allclose(timestep.reward, [5, 5, 0])


def test_three_hunters_on_a_stag_get_a_third_each(hunt):
    before = placed([[0, 0], [0, 2], [1, 1]], [[4, 0], [0, 1]])
    _, timestep = hunt.step(before, jnp.array([RIGHT, LEFT, UP]), KEY)
    np.testing.assert_allclose(timestep.reward, 10 / 3, rtol=1e-6)
    assert timestep.terminated


def test_only_one_of_two_hunters_on_a_hare_catches_it_chosen_at_random(hunt):
    before = placed([[3, 0], [4, 1], [0, 4]], [[4, 0], [0, 1]])
    winners = set()
    for i in range(20):
        after, timestep = hunt.step(before, jnp.array([DOWN, LEFT, STAY]), jax.random.key(i))
        assert sorted(timestep.reward.tolist()) == [0, 0, 1]
        assert after.there.tolist() == [False, True]
        assert timestep.alive.sum() == 2, "the other hunter continues"
        winners.add(int(timestep.reward.argmax()))
    assert winners == {0, 1}


def test_hunters_that_left_do_not_move_or_catch_and_are_observed_as_zeros(hunt):
    before = placed([[3, 0], [0, 2], [2, 2]], [[4, 0], [0, 1]], hunting=(False, True, True))
    after, timestep = hunt.step(before, jnp.array([DOWN, LEFT, STAY]), KEY)
    np.testing.assert_allclose(timestep.reward, 0)
    assert after.hunters[0].tolist() == [3, 0]
    assert timestep.avail_actions[0].tolist() == [True, False, False, False, False]
    first_hunter = timestep.obs[1].reshape(-1)[6:9]
    np.testing.assert_array_equal(first_hunter, 0, "the first hunter is third in the view of the second")


def test_clearing_a_drift_costs_its_player_and_benefits_all():
    env = make("snowdrift", grid_size=5, players=3, drifts=2)
    snow = Snow(jnp.array([[0, 0], [4, 4], [0, 2]]), jnp.array([[0, 1], [2, 2]]), jnp.ones(2, bool), None, jnp.int32(0))
    alone, timestep = env.step(snow, jnp.array([RIGHT, STAY, STAY]), KEY)
    np.testing.assert_allclose(timestep.reward, [2, 6, 6])
    assert alone.there.tolist() == [False, True]
    assert env.goals(alone).reached.tolist() == [0, -1, -1]
    _, timestep = env.step(snow, jnp.array([RIGHT, STAY, LEFT]), KEY)
    np.testing.assert_allclose(timestep.reward, [4, 6, 4], err_msg="two share the cost")
    last = snow._replace(there=jnp.array([True, False]))
    assert env.step(last, jnp.array([RIGHT, STAY, STAY]), KEY)[1].terminated


@pytest.mark.parametrize("name", ["stag_hunt", "snowdrift"])
def test_initial_cells_are_distinct_and_cover_the_board(name):
    env = make(name)
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 64))
    cells = np.concatenate([state[0], state[1]], 1)
    flat = cells[..., 0] * 8 + cells[..., 1]
    assert all(len(set(row)) == len(row) for row in flat.tolist())
    assert len(set(flat.ravel().tolist())) == 64, "anywhere on the board"


def team_of(policy, **settings):
    env = make("stag_hunt", **settings)
    mac = ScriptedMAC(env.spec, SCRIPTED["stag_hunt"][policy](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), 128)
    return jax.jit(lambda key: runner.run(None, jnp.int32(0), key, True))(KEY)


@pytest.mark.parametrize(("policy", "hares", "stags"), [("always_stag", 0, 1), ("always_hare", 4, 0)])
def test_scripted_policies_catch_the_prey_in_their_name(policy, hares, stags):
    _, stats = team_of(policy)
    assert stats.info["hares"].mean() == pytest.approx(hares, abs=0.02)
    assert stats.info["stags"].mean() == pytest.approx(stags, abs=0.02)


def test_always_stag_catches_two_stags_in_turn():
    _, stats = team_of("always_stag", stags=2)
    assert stats.info["stags"].mean() > 1.7, "one stag remains only if three hunters shared the first"


def test_the_switcher_catches_no_hare_early_and_some_later():
    batch, stats = team_of("switcher")
    caught = np.asarray(batch.reward).max(-1) * np.asarray(batch["filled"])
    early, late = caught[:, :6], caught[:, 6:]
    assert not (early == 1).any(), "no hares at first"
    assert (late == 1).any()
    assert stats.info["stags"].mean() > 0.5


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("stag_hunt", {"grid_size": 2}),
        ("stag_hunt", {"hunters": 0}),
        ("snowdrift", {"drifts": 0}),
        ("snowdrift", {"grid_size": 3}),
    ],
)
def test_impossible_boards_raise_a_user_error(name, settings):
    with pytest.raises(UserError):
        make(name, **settings)

"""Stag hunt and snowdrift on boards one can check by hand, and the rules that play them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.controllers import RuleMAC
from omg.envs import make
from omg.envs.snowdrift import Snow
from omg.envs.stag_hunt import Hunt
from omg.opponents import REGISTRY as RULES
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


def test_two_hunters_who_arrive_together_share_the_stag(hunt):
    before = placed([[0, 0], [0, 2], [4, 4]], [[4, 0], [0, 1]])
    after, shown = hunt.step(before, jnp.array([RIGHT, LEFT, STAY]), KEY)
    np.testing.assert_allclose(shown.reward, [5, 5, 0])
    assert shown.alive.tolist() == [False, False, True]
    assert after.there.tolist() == [True, False]
    assert hunt.goals(after).reached.tolist() == [1, 1, -1]
    assert not shown.terminated, "the third plays on"
    assert shown.info["stags"] == 1
    assert shown.info["hares"] == 0


def test_one_alone_gets_nothing_and_can_wait(hunt):
    before = placed([[0, 0], [0, 3], [4, 4]], [[4, 0], [0, 1]])
    alone, shown = hunt.step(before, jnp.array([RIGHT, LEFT, STAY]), KEY)
    np.testing.assert_allclose(shown.reward, 0)
    assert shown.alive.all()
    _, shown = hunt.step(alone, jnp.array([STAY, LEFT, STAY]), KEY)
    np.testing.assert_allclose(shown.reward, [5, 5, 0])


def test_three_on_a_stag_share_it_in_three(hunt):
    before = placed([[0, 0], [0, 2], [1, 1]], [[4, 0], [0, 1]])
    _, shown = hunt.step(before, jnp.array([RIGHT, LEFT, UP]), KEY)
    np.testing.assert_allclose(shown.reward, 10 / 3, rtol=1e-6)
    assert shown.terminated


def test_a_hare_feeds_one_and_lots_decide_between_two(hunt):
    before = placed([[3, 0], [4, 1], [0, 4]], [[4, 0], [0, 1]])
    winners = set()
    for i in range(20):
        after, shown = hunt.step(before, jnp.array([DOWN, LEFT, STAY]), jax.random.key(i))
        assert sorted(shown.reward.tolist()) == [0, 0, 1]
        assert after.there.tolist() == [False, True]
        assert shown.alive.sum() == 2, "whoever came second plays on"
        winners.add(int(shown.reward.argmax()))
    assert winners == {0, 1}


def test_the_gone_neither_move_nor_hunt_nor_are_seen(hunt):
    before = placed([[3, 0], [0, 2], [2, 2]], [[4, 0], [0, 1]], hunting=(False, True, True))
    after, shown = hunt.step(before, jnp.array([DOWN, LEFT, STAY]), KEY)
    np.testing.assert_allclose(shown.reward, 0)
    assert after.hunters[0].tolist() == [3, 0]
    assert shown.avail_actions[0].tolist() == [True, False, False, False, False]
    own_row = shown.obs[1].reshape(-1)[6:9]
    np.testing.assert_array_equal(own_row, 0, "the second sees the first, two seats on, as nobody")


def test_drifts_cost_who_clears_them_and_please_everybody():
    world = make("snowdrift", grid_size=5, players=3, drifts=2)
    snow = Snow(jnp.array([[0, 0], [4, 4], [0, 2]]), jnp.array([[0, 1], [2, 2]]), jnp.ones(2, bool), None, jnp.int32(0))
    alone, shown = world.step(snow, jnp.array([RIGHT, STAY, STAY]), KEY)
    np.testing.assert_allclose(shown.reward, [2, 6, 6])
    assert alone.there.tolist() == [False, True]
    assert world.goals(alone).reached.tolist() == [0, -1, -1]
    _, shown = world.step(snow, jnp.array([RIGHT, STAY, LEFT]), KEY)
    np.testing.assert_allclose(shown.reward, [4, 6, 4], err_msg="two share the cost")
    last = snow._replace(there=jnp.array([True, False]))
    assert world.step(last, jnp.array([RIGHT, STAY, STAY]), KEY)[1].terminated


@pytest.mark.parametrize("world", ["stag_hunt", "snowdrift"])
def test_starts_are_on_cells_of_their_own(world):
    env = make(world)
    state, _ = jax.vmap(env.reset)(jax.random.split(KEY, 64))
    cells = np.concatenate([state[0], state[1]], 1)
    flat = cells[..., 0] * 8 + cells[..., 1]
    assert all(len(set(row)) == len(row) for row in flat.tolist())
    assert len(set(flat.ravel().tolist())) == 64, "anywhere on the board"


def team_of(rule, **settings):
    env = make("stag_hunt", **settings)
    mac = RuleMAC(env.spec, RULES["stag_hunt"][rule](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), 128)
    return jax.jit(lambda key: runner.run(None, jnp.int32(0), key, True))(KEY)


@pytest.mark.parametrize(("rule", "hares", "stags"), [("always_stag", 0, 1), ("always_hare", 4, 0)])
def test_rules_are_after_what_their_name_says(rule, hares, stags):
    _, stats = team_of(rule)
    assert stats.info["hares"].mean() == pytest.approx(hares, abs=0.02)
    assert stats.info["stags"].mean() == pytest.approx(stags, abs=0.02)


def test_two_stags_are_hunted_one_after_the_other():
    _, stats = team_of("always_stag", stags=2)
    assert stats.info["stags"].mean() > 1.7, "unless three shared the first"


def test_a_switcher_changes_its_mind():
    batch, stats = team_of("switcher")
    caught = np.asarray(batch.reward).max(-1) * np.asarray(batch["filled"])
    early, late = caught[:, :6], caught[:, 6:]
    assert not (early == 1).any(), "no hares at first"
    assert (late == 1).any()
    assert stats.info["stags"].mean() > 0.5


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        ("stag_hunt", {"grid_size": 2}),
        ("stag_hunt", {"hunters": 0}),
        ("snowdrift", {"drifts": 0}),
        ("snowdrift", {"grid_size": 3}),
    ],
)
def test_impossible_boards_get_a_sentence(world, settings):
    with pytest.raises(UserError):
        make(world, **settings)

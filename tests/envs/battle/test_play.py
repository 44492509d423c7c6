"""Invariants of battles under random actions on different maps, and known results of scripted policies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.components.episode_buffer import make_scheme
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.opponents import REGISTRY
from omg.runners import VectorRunner
from tests.helpers import or_slow

N_ENVS, STEPS = 16, 40
MAPS = {
    "marines": "3m",
    "shields": "3s_vs_5z",
    "healers": "MMM",
    "walls": "corridor",
    "kamikaze": "so_many_baneling",
}
SEEDS = st.integers(0, 2**31 - 1)
few = settings(max_examples=3, deadline=None, derandomize=True)


@functools.cache
def player(map_name: str):
    """Battles with random actions: units and time step before and after every step, and the actions."""
    env = make("battle", map_name=map_name)

    def step(carry, key):
        state, before = carry
        noise = jax.random.uniform(key, before.avail_actions.shape)
        actions = jnp.where(before.avail_actions, noise, -1).argmax(-1)
        new, timestep = jax.vmap(env.step)(state, actions, jax.random.split(key, N_ENVS))
        return (new, timestep), (state.fight, before, actions, new.fight, timestep)

    @jax.jit
    def play(seed):
        key = jax.random.key(seed)
        start = jax.jit(jax.vmap(env.reset))(jax.random.split(key, N_ENVS))
        return jax.lax.scan(step, start, jax.random.split(key, STEPS))[1]

    return env, lambda seed: jax.tree.map(np.asarray, play(seed))


@pytest.mark.parametrize("feature", or_slow("marines", "shields", "healers", slow=["walls", "kamikaze"]))
def test_invariants_of_random_battles(feature):
    env, play = player(MAPS[feature])
    n, units = env.spec.n_agents, env.map.units
    heals = np.array([u.hp_regen > 0 for u in units]) | (feature == "healers")
    size = env.rules.radius + env.rules.radius.T
    size = np.where([[a.plane == b.plane for a in units] for b in units], size, 1e-6)

    @few
    @given(SEEDS)
    def check(seed):
        before, earlier, actions, after, timestep = play(seed)
        alive, alive_after = before.health > 0, after.health > 0
        assert not (alive_after & ~alive).any(), "dead units stay dead"
        rises = after.health > before.health + 1e-4
        assert not rises[..., ~heals].any(), "health rises only by healing"
        assert (after.health <= env.rules.hp[:, 0] + 1e-3).all()
        assert (after.shield <= env.rules.max_shield[:, 0] + 1e-3).all()
        rose = (after.shield > before.shield + 1e-4) & (after.quiet < 7.1 * 22.4)
        assert not rose.any(), "shields regenerate only after 7.1 seconds without damage"

        dead = ~alive
        for name in ("x", "y", "health", "shield"):
            assert (getattr(after, name) == getattr(before, name))[dead].all(), "dead units do not change"
        for place in (after.x, after.y):
            assert (place >= 0).all()
            assert (place <= 32).all()
        flat_x, flat_y = (jnp.asarray(place.reshape(-1, len(units)).T) for place in (after.x, after.y))
        assert env.rules.walkable(flat_x, flat_y).all(), "all units are on the ground"

        # Units may overlap for a short time, but never stay in the same position.
        running = ~np.cumsum(timestep.terminated, 0).astype(bool)
        depth = np.where(running, overlap(after, size), 0)
        assert depth.mean() < (0.1 if len(units) < 12 else 0.5)
        assert (np.minimum(depth[:-4], depth[4:]) < 0.8).all()

        available = timestep.avail_actions
        living = alive_after[..., :n]
        np.testing.assert_array_equal(available[..., 0], ~living)
        np.testing.assert_array_equal(available[..., 1], living)
        gap = (after.x[..., :n, None] - after.x[..., None, n:]) ** 2
        gap = gap + (after.y[..., :n, None] - after.y[..., None, n:]) ** 2
        shoots = ~env.rules.healer[:n, 0]
        wanted = (gap <= 36) & living[..., None] & alive_after[..., None, n:]
        clear = abs(gap - 36) > 1e-3
        np.testing.assert_array_equal(
            available[..., shoots, 6:][clear[..., shoots, :]], wanted[..., shoots, :][clear[..., shoots, :]]
        )
        taken = np.take_along_axis(earlier.avail_actions, actions[..., None], -1)
        assert taken.all()

    check()


def overlap(fight, size: np.ndarray) -> np.ndarray:
    """The largest relative overlap of two living units in each environment: 0 if apart, 1 at the same position."""
    distance = np.sqrt(
        (fight.x[..., :, None] - fight.x[..., None, :]) ** 2 + (fight.y[..., :, None] - fight.y[..., None, :]) ** 2
    )
    alive = fight.health > 0
    both = alive[..., :, None] & alive[..., None, :] & ~np.eye(distance.shape[-1], dtype=bool)
    share = np.where(both, np.maximum(1 - distance / size, 0), 0)
    return share.max((-1, -2))


def test_the_return_of_a_win_is_twenty():
    """Without regeneration the return is the scaled damage, kills and win bonus; a win returns 20."""
    env = make("battle", map_name="3m")
    stats = fights(env, "focus_fire", 64)
    won = np.asarray(stats.info["battle_won"]) > 0
    returns = np.asarray(stats.agent_returns)
    assert won.any()
    np.testing.assert_allclose(returns[won], 20, rtol=1e-4)
    assert (returns[~won] < 20 - 200 * 20 / 365 + 1e-3).all()


def fights(env, policy: str, n: int):
    mac = ScriptedMAC(env.spec, REGISTRY["battle"][policy](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), n)
    play = jax.jit(lambda key: runner.run(jnp.int32(0), jnp.int32(0), key, True, False)[1])
    return play(jax.random.key(1))


def won(map_name: str, policy: str) -> float:
    return float(fights(make("battle", map_name=map_name), policy, 100).info["battle_won"].mean())


@pytest.mark.parametrize("map_name", or_slow("3m", slow=["8m"]))
def test_focus_fire_beats_random_play(map_name):
    assert won(map_name, "focus_fire") - won(map_name, "random") >= 0.3


@pytest.mark.slow
def test_stalkers_win_by_kiting_and_lose_without():
    assert won("3s_vs_5z", "kite") >= 0.8
    assert won("3s_vs_5z", "nearest_enemy") <= 0.2


def test_a_mirrored_battle_has_a_mirrored_course():
    """Exchanging north and south changes neither damage nor rewards."""
    env = make("battle", map_name="3s_vs_5z")
    step, swap = jax.jit(env.step), jnp.array([0, 1, 3, 2, 4, 5, *range(6, 11)])
    state, _ = jax.jit(env.reset)(jax.random.key(3))
    other = state._replace(fight=state.fight._replace(y=32 - state.fight.y))
    for t in range(16):
        actions = jax.random.randint(jax.random.key(t), (3,), 1, 11)
        state, timestep = step(state, actions, jax.random.key(0))
        other, mirrored = step(other, swap[actions], jax.random.key(0))
        if t < 7:
            # Later, collisions amplify differences due to rounding.
            np.testing.assert_allclose(other.fight.y, 32 - state.fight.y, atol=5e-3)
            np.testing.assert_allclose(other.fight.x, state.fight.x, atol=5e-3)
        np.testing.assert_allclose(other.fight.health, state.fight.health, atol=1e-3)
        np.testing.assert_allclose(mirrored.reward, timestep.reward, atol=1e-3)


def test_sparse_rewards_are_one_for_a_win_and_minus_one_for_a_defeat():
    env = make("battle", map_name="3m", reward_sparse=True)
    stats = fights(env, "focus_fire", 32)
    expected = np.where(np.asarray(stats.info["battle_won"]) > 0, 1.0, -1.0)
    draw = (np.asarray(stats.info["dead_allies"]) == 3) & (np.asarray(stats.info["dead_enemies"]) == 3)
    np.testing.assert_array_equal(np.asarray(stats.agent_returns)[~draw, 0], expected[~draw])


@pytest.mark.slow
def test_vmapped_and_single_environments_agree():
    """The code with the environment axis last gives the same results under one `vmap`, two, and none."""
    env = make("battle", map_name="3m")
    keys = jax.random.split(jax.random.key(0), 4)
    actions = jnp.array([[1, 2, 3], [4, 5, 1], [2, 2, 2], [3, 1, 4]])
    state, _ = jax.jit(jax.vmap(env.reset))(keys)
    _, together = jax.jit(jax.vmap(env.step))(state, actions, keys)
    pairs = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), (state, actions, keys))
    _, twice = jax.jit(jax.vmap(jax.vmap(env.step)))(*pairs)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for i in range(4):
        one, _ = reset(keys[i])
        _, alone = step(one, actions[i], keys[i])
        for a, b, c in zip(*(jax.tree.leaves(t) for t in (together, twice, alone)), strict=True):
            np.testing.assert_allclose(a[i], c, atol=1e-5)
            np.testing.assert_allclose(b[i // 2, i % 2], c, atol=1e-5)


@pytest.mark.slow
def test_zerglings_walk_around_the_cliff_by_the_ramp():
    """On 2c_vs_64zg the path leads around the ledge; enemies that walk straight would stay below the cliff."""
    env = make("battle", map_name="2c_vs_64zg")

    @jax.jit
    def wait(key):
        state, _ = jax.jit(env.reset)(key)
        stop = jnp.array([1, 1])
        return jax.lax.fori_loop(0, 30, lambda i, s: env.step(s, stop, key)[0], state)

    fight = wait(jax.random.key(0)).fight
    up = (fight.y[2:] > 14.5) & (fight.health[2:] > 0) & (fight.y[2:] < 19.5) & (abs(fight.x[2:] - 16) < 8)
    assert int(up.sum()) > 0 or float(fight.health[:2].sum()) < 400

"""What holds in every battle, whatever is played: random fights on maps of every sort."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.components.episode_buffer import make_scheme
from omg.controllers import RuleMAC
from omg.envs import make
from omg.opponents import REGISTRY
from omg.runners import VectorRunner

WORLDS, STEPS = 16, 40
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
    """Random fights: everything before every step, what was done, and what came of it."""
    world = make("battle", map_name=map_name)

    def step(carry, key):
        state, seen = carry
        lots = jax.random.uniform(key, seen.avail_actions.shape)
        actions = jnp.where(seen.avail_actions, lots, -1).argmax(-1)
        new, shown = jax.vmap(world.step)(state, actions, jax.random.split(key, WORLDS))
        return (new, shown), (state.fight, seen, actions, new.fight, shown)

    @jax.jit
    def play(seed):
        key = jax.random.key(seed)
        start = jax.vmap(world.reset)(jax.random.split(key, WORLDS))
        return jax.lax.scan(step, start, jax.random.split(key, STEPS))[1]

    return world, lambda seed: jax.tree.map(np.asarray, play(seed))


@pytest.mark.parametrize("sort", MAPS)
def test_what_every_fight_keeps(sort):
    world, play = player(MAPS[sort])
    n, units = world.spec.n_agents, world.map.units
    heals = np.array([u.hp_regen > 0 for u in units]) | (sort == "healers")
    size = world.rules.radius + world.rules.radius.T
    size = np.where([[a.plane == b.plane for a in units] for b in units], size, 1e-6)

    @few
    @given(SEEDS)
    def check(seed):
        before, seen, actions, after, shown = play(seed)
        alive, still = before.health > 0, after.health > 0
        assert not (still & ~alive).any(), "nobody comes back"
        rises = after.health > before.health + 1e-4
        assert not rises[..., ~heals].any(), "health rises only by healing"
        assert (after.health <= world.rules.hp[:, 0] + 1e-3).all()
        assert (after.shield <= world.rules.max_shield[:, 0] + 1e-3).all()
        rose = (after.shield > before.shield + 1e-4) & (after.quiet < 7.1 * 22.4)
        assert not rose.any(), "shields rise only out of combat"

        dead = ~alive
        for name in ("x", "y", "health", "shield"):
            assert (getattr(after, name) == getattr(before, name))[dead].all(), "the dead stay as they are"
        for place in (after.x, after.y):
            assert (place >= 0).all()
            assert (place <= 32).all()
        flat_x, flat_y = after.x.reshape(-1, len(units)).T, after.y.reshape(-1, len(units)).T
        assert np.asarray(world.rules.walkable(flat_x, flat_y)).all(), "everybody stands on ground"

        # Solid: units may press into each other, never stand in one place for long.
        running = ~np.cumsum(shown.terminated, 0).astype(bool)
        deep = np.where(running, overlap(after, size), 0)
        assert deep.mean() < (0.1 if len(units) < 12 else 0.5)
        assert (np.minimum(deep[:-4], deep[4:]) < 0.8).all()

        available = shown.avail_actions
        here = still[..., :n]
        np.testing.assert_array_equal(available[..., 0], ~here)
        np.testing.assert_array_equal(available[..., 1], here)
        gap = (after.x[..., :n, None] - after.x[..., None, n:]) ** 2
        gap = gap + (after.y[..., :n, None] - after.y[..., None, n:]) ** 2
        shoots = ~world.rules.healer[:n, 0]
        wanted = (gap <= 36) & here[..., None] & still[..., None, n:]
        clear = abs(gap - 36) > 1e-3
        np.testing.assert_array_equal(
            available[..., shoots, 6:][clear[..., shoots, :]], wanted[..., shoots, :][clear[..., shoots, :]]
        )
        taken = np.take_along_axis(seen.avail_actions, actions[..., None], -1)
        assert taken.all()

    check()


def overlap(fight, size: np.ndarray) -> np.ndarray:
    """How much of their sizes the living share, the worst pair of each world: 0 apart, 1 in the same place."""
    far = np.sqrt(
        (fight.x[..., :, None] - fight.x[..., None, :]) ** 2 + (fight.y[..., :, None] - fight.y[..., None, :]) ** 2
    )
    alive = fight.health > 0
    both = alive[..., :, None] & alive[..., None, :] & ~np.eye(far.shape[-1], dtype=bool)
    share = np.where(both, np.maximum(1 - far / size, 0), 0)
    return share.max((-1, -2))


def test_rewards_add_up_to_twenty():
    """Without regeneration what a fight returns is what was done to the enemies; a win is 20."""
    world = make("battle", map_name="3m")
    stats = fights(world, "focus_fire", 64)
    won = np.asarray(stats.info["battle_won"]) > 0
    returns = np.asarray(stats.agent_returns)
    assert won.any()
    np.testing.assert_allclose(returns[won], 20, rtol=1e-4)
    assert (returns[~won] < 20 - 200 * 20 / 365 + 1e-3).all()


def fights(world, rule: str, n: int):
    mac = RuleMAC(world.spec, REGISTRY["battle"][rule](world.spec))
    runner = VectorRunner(world, mac, *make_scheme(world.spec), n)
    play = jax.jit(lambda key: runner.run(jnp.int32(0), jnp.int32(0), key, True, False)[1])
    return play(jax.random.key(1))


def won(map_name: str, rule: str) -> float:
    return float(fights(make("battle", map_name=map_name), rule, 500).info["battle_won"].mean())


@pytest.mark.parametrize("map_name", ["3m", "8m"])
def test_focus_fire_beats_random_play(map_name):
    assert won(map_name, "focus_fire") - won(map_name, "random") >= 0.3


def test_stalkers_that_kite_win_and_those_that_stand_do_not():
    assert won("3s_vs_5z", "kite") >= 0.8
    assert won("3s_vs_5z", "nearest_enemy") <= 0.2


def test_a_mirrored_fight_is_the_mirrored_fight():
    """North for south: the same shots, the same dead."""
    world = make("battle", map_name="3s_vs_5z")
    step, swap = jax.jit(world.step), jnp.array([0, 1, 3, 2, 4, 5, *range(6, 11)])
    state, _ = world.reset(jax.random.key(3))
    other = state._replace(fight=state.fight._replace(y=32 - state.fight.y))
    for t in range(16):
        actions = jax.random.randint(jax.random.key(t), (3,), 1, 11)
        state, shown = step(state, actions, jax.random.key(0))
        other, mirrored = step(other, swap[actions], jax.random.key(0))
        if t < 7:
            # Later on the crowd has made much of what rounding began.
            np.testing.assert_allclose(other.fight.y, 32 - state.fight.y, atol=5e-3)
            np.testing.assert_allclose(other.fight.x, state.fight.x, atol=5e-3)
        np.testing.assert_allclose(other.fight.health, state.fight.health, atol=1e-3)
        np.testing.assert_allclose(mirrored.reward, shown.reward, atol=1e-3)


def test_sparse_rewards_are_for_the_end_only():
    world = make("battle", map_name="3m", reward_sparse=True)
    stats = fights(world, "focus_fire", 32)
    expected = np.where(np.asarray(stats.info["battle_won"]) > 0, 1.0, -1.0)
    drawn = (np.asarray(stats.info["dead_allies"]) == 3) & (np.asarray(stats.info["dead_enemies"]) == 3)
    np.testing.assert_array_equal(np.asarray(stats.agent_returns)[~drawn, 0], expected[~drawn])


def test_worlds_together_and_alone_are_the_same():
    """The code with the worlds' axis last, under one `vmap`, two, and none."""
    world = make("battle", map_name="3m")
    keys = jax.random.split(jax.random.key(0), 4)
    actions = jnp.array([[1, 2, 3], [4, 5, 1], [2, 2, 2], [3, 1, 4]])
    state, _ = jax.vmap(world.reset)(keys)
    _, together = jax.vmap(world.step)(state, actions, keys)
    pairs = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), (state, actions, keys))
    _, twice = jax.vmap(jax.vmap(world.step))(*pairs)
    for i in range(4):
        one, _ = world.reset(keys[i])
        _, alone = world.step(one, actions[i], keys[i])
        for a, b, c in zip(*(jax.tree.leaves(t) for t in (together, twice, alone)), strict=True):
            np.testing.assert_allclose(a[i], c, atol=1e-5)
            np.testing.assert_allclose(b[i // 2, i % 2], c, atol=1e-5)


def test_zerglings_find_the_ramp():
    """On 2c_vs_64zg the way up is around the ledge; enemies that only walked straight would stay below the cliff."""
    world = make("battle", map_name="2c_vs_64zg")

    @jax.jit
    def wait(key):
        state, _ = world.reset(key)
        stop = jnp.array([1, 1])
        return jax.lax.fori_loop(0, 30, lambda i, s: world.step(s, stop, key)[0], state)

    fight = wait(jax.random.key(0)).fight
    up = (fight.y[2:] > 14.5) & (fight.health[2:] > 0) & (fight.y[2:] < 19.5) & (abs(fight.x[2:] - 16) < 8)
    assert int(up.sum()) > 0 or float(fight.health[:2].sum()) < 400

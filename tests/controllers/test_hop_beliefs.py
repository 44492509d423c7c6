"""What HOP believes after a step, worked out by hand, and beyond the gate."""

import jax
import jax.numpy as jnp
import numpy as np

from omg.controllers import HopMAC
from omg.envs import make
from omg.envs.stag_hunt import Hunt

KEY = jax.random.key(0)


def test_nothing_is_inferred_beyond_the_gate():
    """One co-player is two steps from the nearest prey, the other one step."""
    env = make("stag_hunt", grid_size=5, hunters=3, hares=1, stags=1)
    world = Hunt(
        jnp.array([[4, 4], [0, 2], [3, 0]]), jnp.array([[0, 0], [4, 0]]), jnp.ones(3, bool), jnp.ones(2, bool),
        jnp.full(3, -1), jnp.int32(0),
    )  # fmt: skip
    one, seen = (jax.tree.map(lambda x: x[None], x) for x in (world, env._show(world, jnp.zeros(3))))

    def believed(**config):
        mac = HopMAC(env, {"hop_hidden_dim": 8, **config})
        memory = mac.init_memory(None, 1)
        moves = jnp.array([[0, 3, 2]])
        networks = jax.jit(mac.init_networks)(KEY)
        after, noted = jax.jit(mac.observe)(networks, memory, seen, moves, one, seen, jnp.ones(1, bool))
        return np.asarray(memory.belief[0]), np.asarray(after.belief[0]), np.asarray(noted["inferred"][0])

    start, everything, read = believed()
    assert read.all()
    _, gated, read = believed(gate_distance=1)
    assert read.tolist() == [False, False, True]
    np.testing.assert_allclose(gated[1], start[1], err_msg="too far to say")
    np.testing.assert_allclose(gated[2], everything[2], rtol=1e-5, err_msg="near enough")
    assert not np.allclose(everything[1], start[1])
    _, nothing, read = believed(gate_distance=0.5)
    assert not read.any()
    np.testing.assert_allclose(nothing, start)


def test_what_is_believed_after_a_step_by_hand():
    """b(g)·(0.95·π(a | s, g) + 0.05 / choices), normalised; who has left is not followed any more."""
    env = make("stag_hunt", grid_size=4, hunters=3, hares=2, stags=1)
    world, _ = env.reset(KEY)
    world = world._replace(hunting=jnp.array([True, True, False]))
    seen = env._show(world, jnp.zeros(3))
    mac = HopMAC(env, {"hop_hidden_dim": 8, "surprise": 0.05})
    networks, memory = jax.jit(mac.init_networks)(KEY), mac.init_memory(None, 1)
    one = jax.tree.map(lambda x: x[None], (world, seen))
    action = int(np.flatnonzero(np.asarray(seen.avail_actions[1]))[-1])
    moves = jnp.array([[0, action, 0]])
    after, _ = jax.jit(mac.observe)(networks, memory, one[1], moves, one[0], one[1], jnp.ones(1, bool))

    np.testing.assert_allclose(memory.belief[0, 1], [0.475 / 2, 0.475 / 2, 0.475, 0.05], rtol=1e-5)
    choices, likelihood = int(seen.avail_actions[1].sum()), []
    for goal in mac.goal_features(seen.obs[1]):
        logits = np.asarray(networks["model"](seen.obs[1], goal, env.goal_features(seen.obs[1])))
        chances = np.where(seen.avail_actions[1], np.exp(logits - logits.max()), 0)
        likelihood.append(0.95 * chances[action] / chances.sum() + 0.05 / choices)
    wanted = np.asarray(memory.belief[0, 1]) * likelihood
    np.testing.assert_allclose(after.belief[0, 1], wanted / wanted.sum(), rtol=1e-4)
    np.testing.assert_allclose(after.belief[0, 2], memory.belief[0, 2], rtol=1e-6)

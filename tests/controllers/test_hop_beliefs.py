"""HOP's beliefs after one step, by hand, and the distance beyond which nothing is inferred."""

import jax
import jax.numpy as jnp
import numpy as np

from omg.controllers import HopMAC
from omg.envs import make
from omg.envs.stag_hunt import Hunt

KEY = jax.random.key(0)


def test_agents_far_from_every_goal_are_not_inferred():
    """Of two co-players one is two steps from the nearest prey, the other one step."""
    env = make("stag_hunt", grid_size=5, hunters=3, hares=1, stags=1)
    hunt = Hunt(
        jnp.array([[4, 4], [0, 2], [3, 0]]), jnp.array([[0, 0], [4, 0]]), jnp.ones(3, bool), jnp.ones(2, bool),
        jnp.full(3, -1), jnp.int32(0),
    )  # fmt: skip
    one, seen = (jax.tree.map(lambda x: x[None], x) for x in (hunt, env._timestep(hunt, jnp.zeros(3))))

    def beliefs(**config):
        mac = HopMAC(env, {"hop_hidden_dim": 8, "goal_memory": "types", **config})
        memory = mac.init_memory(None, 1)
        actions = jnp.array([[0, 3, 2]])
        params = jax.jit(mac.init_params)(KEY)
        after, record = jax.jit(mac.observe)(params, memory, seen, actions, one, seen, jnp.ones(1, bool))
        return np.asarray(memory.belief[0]), np.asarray(after.belief[0]), np.asarray(record["inferred"][0])

    start, ungated, inferred = beliefs()
    assert inferred.all()
    _, gated, inferred = beliefs(gate_distance=1)
    assert inferred.tolist() == [False, False, True]
    np.testing.assert_allclose(gated[1], start[1], err_msg="too far away")
    np.testing.assert_allclose(gated[2], ungated[2], rtol=1e-5, err_msg="near enough")
    assert not np.allclose(ungated[1], start[1])
    _, nothing, inferred = beliefs(gate_distance=0.5)
    assert not inferred.any()
    np.testing.assert_allclose(nothing, start)


def test_the_belief_after_one_step_by_hand():
    """b(g)·(0.95·π(a | s, g) + 0.05 / n_available), normalised; the belief about an agent that left stays."""
    env = make("stag_hunt", grid_size=4, hunters=3, hares=2, stags=1)
    hunt, _ = jax.jit(env.reset)(KEY)
    hunt = hunt._replace(hunting=jnp.array([True, True, False]))
    seen = env._timestep(hunt, jnp.zeros(3))
    mac = HopMAC(env, {"hop_hidden_dim": 8, "likelihood_epsilon": 0.05, "goal_memory": "types"})
    params, memory = jax.jit(mac.init_params)(KEY), mac.init_memory(None, 1)
    one = jax.tree.map(lambda x: x[None], (hunt, seen))
    action = int(np.flatnonzero(np.asarray(seen.avail_actions[1]))[-1])
    actions = jnp.array([[0, action, 0]])
    after, record = jax.jit(mac.observe)(params, memory, one[1], actions, one[0], one[1], jnp.ones(1, bool))

    np.testing.assert_allclose(memory.belief[0, 1], [0.475 / 2, 0.475 / 2, 0.475, 0.05], rtol=1e-5)
    obs, available = seen.obs[1], np.asarray(seen.avail_actions[1])
    every = jnp.broadcast_to(obs, (4, len(obs)))
    logits = np.asarray(params["model"](every, mac.models.goal_features(obs), env.goal_features(every)))
    weights = np.where(available, np.exp(logits), 0)
    likelihood = 0.95 * weights[:, action] / weights.sum(-1) + 0.05 / available.sum()
    expected = np.asarray(memory.belief[0, 1]) * likelihood
    np.testing.assert_allclose(after.belief[0, 1], expected / expected.sum(), rtol=1e-4)
    np.testing.assert_allclose(after.belief[0, 2], memory.belief[0, 2], rtol=1e-6)
    assert record["inferred"][0].tolist() == [True, True, False], "nothing is inferred from an agent that left"

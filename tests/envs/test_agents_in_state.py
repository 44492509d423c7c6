"""What an environment says of its agents in the global state (`Spec.agents_in_state`)."""

import jax
import numpy as np
import pytest

from omg.build import make_env
from omg.config import Command, load
from omg.envs.multiagentenv import rows_of

NAMED = ("foraging", "stag_hunt", "snowdrift", "predator_prey", "battle", "prisoners_dilemma")


@pytest.mark.parametrize("name", [*NAMED, "overcooked"])
def test_the_places_of_an_agent_change_with_its_own_action_alone(name):
    env = make_env(load(Command(config="iql", env_config=name)))
    places, n = np.array(env.spec.agents_in_state), env.spec.n_agents
    assert len(places) == n
    assert len(set(places.ravel().tolist())) == places.size, "no place belongs to two agents"
    state, seen = jax.jit(env.reset)(jax.random.key(3))
    # In battle 0 is for dead units; elsewhere it is "do nothing", or the first choice.
    stay = 1 if name == "battle" else 0
    step = jax.jit(lambda actions: env.step(state, actions, jax.random.key(1))[1].state)
    still = np.asarray(step(np.full(n, stay)))[places]
    moved = set()
    for agent in range(n):
        for action in np.flatnonzero(np.asarray(seen.avail_actions)[agent]).tolist():
            after = np.asarray(step(np.where(np.arange(n) == agent, action, stay)))[places]
            change = abs(after - still).max(-1)
            # Units of a battle push each other a little.
            others = 0.5 * change[agent] if name == "battle" else 1e-5
            assert (np.delete(change, agent) <= others).all(), f"agent {agent}, action {action}"
            moved |= {agent} if change[agent] > 1e-3 else set()
    assert moved == set(range(n))


@pytest.mark.parametrize("name", NAMED)
def test_the_global_state_vector_is_drawn_like_the_state(name):
    """Decoded subgoals are drawn by `imagine`: told the truth, it draws the truth."""
    env = make_env(load(Command(config="iql", env_config=name)))
    state, seen = jax.jit(env.reset)(jax.random.key(3))
    other, _ = jax.jit(env.reset)(jax.random.key(4))
    step = jax.jit(env.step)
    for t in range(4):
        drawn = env.draw(jax.device_get(state))
        described = env.draw(env.imagine(jax.device_get(other), np.asarray(seen.state, float)))
        assert len(drawn.shapes) == len(described.shapes)
        for one, two in zip(drawn.shapes, described.shapes, strict=True):
            assert [x for x in one if isinstance(x, str)] == [x for x in two if isinstance(x, str)]
            numbers = [[x for x in shape if isinstance(x, float | int)] for shape in (one, two)]
            np.testing.assert_allclose(*numbers, atol=0.1)
        # In battle 1 is "stop" (attacks are drawn, but are not described), in foraging 5 is "load".
        wanted = np.asarray(seen.avail_actions)[:, : 2 if name == "battle" else 5]
        actions = np.array([np.flatnonzero(row)[(t + i) % row.sum()] for i, row in enumerate(wanted)])
        state, seen = step(state, actions, jax.random.key(t))


def test_rows_of_agents():
    assert rows_of(3, 2, 2) == ((3, 4), (5, 6))

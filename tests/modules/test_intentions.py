"""Intentions as a hidden Markov model: the filter against all sequences of goals, what is learned, HOP with them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.components.preferences import ACCIDENT
from omg.controllers import HopMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.learners import goal_learning, intention_learning
from omg.learners.am_learner import VAESettings
from omg.learners.intention_learning import information
from omg.modules.entities import Entities
from omg.modules.intentions import (
    IntentionSpace,
    choices,
    entity_goals,
    filtered,
    likelihood,
    tables_of,
)
from omg.opponents import REGISTRY as SCRIPTED
from omg.runners import PolicyGroup, VectorRunner

KEY = jax.random.key(0)


def space_of(env, codes):
    goals = entity_goals(env)
    return IntentionSpace(codes, goals.size, goals.n_types, env.spec.n_actions, KEY), goals


def recorded(env, names, episodes):
    """Episodes of scripted policies, as observations that HOP's networks see."""
    groups = [
        PolicyGroup(ScriptedMAC(env.spec, SCRIPTED[env.spec.name][name](env.spec)), jnp.zeros(1, jnp.int32), (0,))
        for name in names
    ]
    found = goal_learning.play(env, groups, episodes, 0)
    return found._replace(obs=np.asarray(env.own_first(jnp.asarray(found.obs))))


def test_the_filter_sums_over_all_sequences_of_intentions_and_goals():
    env = make("stag_hunt", grid_size=4, hunters=2, hares=1, stags=1, episode_limit=3)
    space, goals = space_of(env, 2)
    play = intention_learning.split(recorded(env, ("nearest_prey",), 6))[0]
    hazard = 0.2
    found = jax.jit(lambda space, play: filtered(space, goals, play, hazard))(space, play)
    chosen, is_open = (np.asarray(x) for x in choices(space, goals, play))
    likely = np.asarray(likelihood(space, goals, play))
    reached = np.asarray(goals.entities_of.reached(play.obs[:-1], play.obs[1:], play.reward, play.playing))
    assert (reached >= 0).sum() > 2
    states = list(itertools.product(range(2), range(3)))
    for episode, agent in itertools.product(range(play.playing.shape[1]), range(2)):
        steps = int(play.playing[:, episode, agent].sum())
        total = 0.0
        for sequence in itertools.product(states, repeat=steps):
            if len({z for z, _ in sequence}) > 1:
                continue  # an agent keeps its intention for an episode
            p = 0.5 * chosen[0, episode, agent, *sequence[0]]
            for t, (z, e) in enumerate(sequence):
                hit = reached[t, episode, agent]
                p *= likely[t, episode, agent, e] * (1 if hit < 0 else 1 if hit == e else ACCIDENT)
                if t + 1 < steps:
                    stays = is_open[t + 1, episode, e] * (hit < 0) * (1 - hazard)
                    following = sequence[t + 1][1]
                    p *= stays * (e == following) + (1 - stays) * chosen[t + 1, episode, agent, z, following]
            total += p
        log_p = (found.of_actions + found.of_reached)[:, episode, agent].sum()
        np.testing.assert_allclose(log_p, np.log(total), rtol=1e-4)


def test_offsets_in_predator_prey_are_entities_too():
    env = make("predator_prey")
    entities = Entities(env.spec)
    (game, _), seen = env.reset(KEY)
    n, step = env.spec.n_agents, env.spec.entity_step
    assert entities.n == env.settings.obstacles + 1
    away = np.abs(np.asarray(game.p_pos[n] - game.p_pos[:n])).sum(-1) / step
    np.testing.assert_allclose(entities.distance(seen.obs)[:, -1], away, rtol=1e-4)
    assert np.asarray(entities.there(seen.obs)).all()
    assert tables_of(env.spec).tolist() == [0] * env.settings.obstacles + [1]


def test_information_of_codes_about_types():
    assert information(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])) == pytest.approx(1)
    assert information(np.array([0, 1, 0, 1]), np.array([1, 1, 0, 0])) == pytest.approx(0)
    assert information(np.array([0, 1]), np.array([0, 0])) == 1


@pytest.mark.slow
def test_the_likelihood_of_play_rises_above_that_without_goals():
    """On boards that were not trained on, for stag hunters and hare hunters that nobody labelled."""
    env = make("stag_hunt", grid_size=5, hunters=2, hares=2, episode_limit=8)
    goals = entity_goals(env)
    play, held_out = intention_learning.split(recorded(env, ("always_stag", "always_hare"), 80))
    settings = VAESettings(vae_updates=300, vae_lr=0.002)
    spaces = [
        intention_learning.learn(space_of(env, codes)[0], goals, play, hazard, settings, KEY, lambda *_: None)
        for codes, hazard in ((2, 0.02), (1, 1.0))
    ]
    found = intention_learning.measured(*spaces, goals, np.asarray(tables_of(env.spec)), held_out, 0.02)
    assert found["nll"] < found["nll_without"] - 0.03
    assert found["type_information"] > 0.5
    assert found["shuffled"] < 0.1


def test_hop_with_intentions_asks_the_environment_for_no_goals(monkeypatch):
    env = make("stag_hunt", grid_size=5, hunters=2, hares=2, episode_limit=4)
    for name in ("goals", "goal_features", "goal_distance"):
        monkeypatch.setattr(type(env), name, lambda *_: pytest.fail("asked for goals"))
    config = {"learned_goals": True, "goal_form": "intentions", "simulations": 2, "goal_draws": 1, "hop_hidden_dim": 8}
    space, _ = space_of(env, 3)
    mac = HopMAC(env, config, space)
    assert mac.preferences is not None
    np.testing.assert_array_equal(mac.preferences.theta, space.theta)
    scheme, axes = make_scheme(env.spec)
    runner = VectorRunner(env, mac, scheme | mac.scheme, axes, 2)
    played = jax.jit(lambda key: runner.run(mac.init_params(KEY), jnp.int32(0), key, True))(KEY)[0]
    assert np.asarray(played["is_open"])[:, 0].all()

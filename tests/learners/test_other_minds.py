"""LOLA's direction against derivatives by hand, and the reward of social influence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import all_agents, pick
from omg.controllers import BasicMAC
from omg.envs import make
from omg.learners import REGISTRY, td
from omg.learners.influence_learner import influence
from omg.utils.settings import UserError
from tests.conftest import play

R_1 = np.array([[3.0, 0.0], [5.0, 1.0]])
R_2 = np.array([[2.0, 7.0], [-1.0, 1.0]])
LOLA = {"policy_model": "idv_rnn", "agent_output_type": "pi_logits", "action_selector": "multinomial"}
LOLA |= {"rnn_hidden_dim": 4, "gamma": 0.9, "layer_norm": False}


@pytest.fixture(scope="module")
def game():
    return make("matrix_game", payoffs=[R_1.tolist(), R_2.tolist()])


def direction(game, **settings):
    """LOLA's direction with uniform policies and one episode of every joint action, and what the agents remember."""
    learner = REGISTRY["lola_learner"](game.spec, BasicMAC(game.spec, LOLA), LOLA | settings)
    agent = learner.init(jax.random.key(0)).params["agent"]
    agent = eqx.tree_at(lambda a: a.seats.fc2, agent, jax.tree.map(jnp.zeros_like, agent.seats.fc2))
    batch = play(game, 4, **LOLA)
    actions = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int8)
    reward = np.stack([R_1, R_2], -1)[actions[:, 0], actions[:, 1]]
    batch = batch.with_fields(
        actions=batch["actions"].at[:, 0].set(actions), reward=batch["reward"].at[:, 0].set(reward)
    )
    steps = td.steps_of(batch, learner.settings, 1, False)
    baseline = jnp.array([0.3, -0.2])
    found = jax.jit(learner.anticipating)(agent, batch, steps, steps.reward - baseline)
    return found, learner.mac.unroll({"agent": agent}, batch).hidden[0, 0]


@pytest.mark.parametrize("step", [0.0, 0.7])
def test_lola_goes_where_the_derivatives_by_hand_point(game, step):
    """With uniform policies, one episode of every joint action is the exact expectation of a game with one round."""
    found, hidden = direction(game, lola_step=step, lola_limit=1e9)

    softmax = np.diag([0.5, 0.5]) - 0.25  # the derivative of the probabilities by the logits
    half = np.array([0.5, 0.5])
    # The other's step is one of its whole last layer, weights and bias: both agents' gradients point along its input.
    length = 1 + np.square(hidden).sum(-1)
    expected = [
        softmax @ R_1 @ half + step * length[1] * softmax @ R_2 @ softmax @ (softmax @ R_1.T @ half),
        softmax @ R_2.T @ half + step * length[0] * softmax @ R_1.T @ softmax @ (softmax @ R_2 @ half),
    ]
    np.testing.assert_allclose(found.seats.fc2.bias, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_lolas_correction_is_at_most_so_many_times_as_long_as_the_own_gradient(game):
    """Each agent by itself: the first one's correction is cut, the second one's is shorter anyway."""
    of = {limit: direction(game, lola_step=0.7, lola_limit=limit)[0].seats.fc2 for limit in (1e9, 0.2)}
    own = direction(game, lola_step=0.0)[0].seats.fc2
    for seat in (0, 1):
        mine, free, cut = (np.append(x.weight[seat].ravel(), x.bias[seat]) for x in (own, of[1e9], of[0.2]))
        scale = min(1, 0.2 * np.linalg.norm(mine) / np.linalg.norm(free - mine))
        assert (scale < 1) == (seat == 0)
        np.testing.assert_allclose(cut, mine + scale * (free - mine), rtol=1e-5, atol=1e-6)


def test_values_over_several_steps_have_the_derivatives_of_the_return():
    """First: the policy gradient. Second, across agents: what both did until a step counts together, by hand."""
    env = make("matrix_game", payoffs=[R_1.tolist(), R_2.tolist()], rounds=3)
    learner = REGISTRY["lola_learner"](env.spec, BasicMAC(env.spec, LOLA), LOLA)
    batch = play(env, 5, **LOLA)
    steps = td.steps_of(batch, learner.settings, 3, False)
    advantage = jax.random.normal(jax.random.key(3), steps.reward.shape)
    agent = learner.init(jax.random.key(0)).params["agent"]
    bias = agent.seats.fc2.bias

    def log_pi(bias):
        changed = eqx.tree_at(lambda a: a.seats.fc2.bias, agent, bias)
        logits = learner.mac.unroll({"agent": changed}, batch).outputs[:-1]
        return pick(jax.nn.log_softmax(logits), steps.actions)

    def value(bias):
        changed = eqx.tree_at(lambda a: a.seats.fc2.bias, agent, bias)
        return learner.values(changed, batch, steps, advantage)[0]

    discount = 0.9 ** np.arange(3)[:, None]
    first, second = jax.jit(lambda b: (jax.grad(value)(b), jax.hessian(value)(b)))(bias)
    slopes = np.asarray(jax.jit(jax.jacobian(log_pi))(bias))  # [time, batch, agent, seat, action]
    own = (discount[..., None, None] * np.asarray(advantage)[..., 0, None, None] * slopes.sum(2)).sum(0).mean(0)
    np.testing.assert_allclose(first, own, rtol=1e-4, atol=1e-6)
    mine, theirs = (np.cumsum(slopes[:, :, seat, seat, 0], 0) for seat in (0, 1))
    before = [np.concatenate([np.zeros((1, 5)), x[:-1]]) for x in (mine, theirs)]
    across = (discount * np.asarray(advantage)[..., 0] * (mine * theirs - before[0] * before[1])).sum(0).mean()
    np.testing.assert_allclose(second[0, 0, 1, 0], across, rtol=1e-4, atol=1e-6)


def test_lola_needs_networks_of_single_agents(game):
    config = LOLA | {"policy_model": "rnn"}
    with pytest.raises(UserError, match="policy_model=idv_rnn"):
        REGISTRY["lola_learner"](game.spec, BasicMAC(game.spec, config), config)


def test_influence_is_the_divergence_from_what_the_others_would_do_anyway():
    of_others = jnp.log(jnp.array([[[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.5, 0.5]]]))  # [own action, other, theirs]
    log_pi = jnp.log(jnp.array([0.5, 0.5]))
    expected = 0.9 * np.log(0.9 / 0.55) + 0.1 * np.log(0.1 / 0.45)
    found = influence(of_others[None], log_pi[None], jnp.array([0]))
    np.testing.assert_allclose(found, [[expected, 0.0]], rtol=1e-5, atol=1e-7)


def test_an_agent_is_paid_only_for_what_others_still_do(foraging):
    """No agent acts after the last step of an episode."""
    config = {"agent_output_type": "pi_logits", "action_selector": "multinomial", "rnn_hidden_dim": 4, "seq_len": 4}
    config |= {"influence_hidden_dim": 4, "influence_coef": 0.5}
    batch = play(foraging, 3, **config)
    mac = BasicMAC(foraging.spec, config)
    learner = REGISTRY["influence_learner"](foraging.spec, mac, config)
    state = learner.init(jax.random.key(1))
    assert "others" not in learner.acting(state)
    focal = all_agents(batch, foraging.spec.n_agents)
    seen = mac.seen(focal)
    actor = mac.unroll_on(state.params["agent"], seen, jnp.zeros((*seen.own.shape[:-1], 0)))
    paid = np.asarray(learner.intrinsic(state.params, seen, focal, actor))
    steps = np.asarray(focal.filled)
    last = steps * (np.cumsum(steps[:, ::-1], 1)[:, ::-1] == 1)
    assert (paid[steps == 0] == 0).all()
    assert (paid[last > 0] == 0).all()
    assert (paid[(steps > 0) & (last == 0)] > 0).all()

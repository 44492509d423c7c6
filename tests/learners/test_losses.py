"""Losses of team learners against plain loops over real episodes, target networks, and updates."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import time_first
from omg.controllers import BasicMAC
from omg.envs import make
from omg.learners import COMALearner, QLearner, QTranLearner
from omg.learners.td import lambda_targets
from tests.conftest import play

KEY = jax.random.key(0)
CONFIG = {
    "rnn_hidden_dim": 4,
    "gamma": 0.9,
    "td_lambda": 0.0,
    "critic_hidden_dim": 6,
    "mixing_embed_dim": 4,
    "hypernet_embed": 4,
}


@pytest.fixture(scope="module")
def batch(foraging):
    """Six short episodes with one food item: some terminate early, some are truncated at the time limit."""
    return play(foraging, 6, seed=3)


def learner_of(cls, spec, **config):
    """A learner, its networks, and target networks with other weights."""
    config = CONFIG | config
    learner = cls(spec, BasicMAC(spec, config), config)
    state, other = jax.jit(learner.init)(jax.random.key(0)), jax.jit(learner.init)(jax.random.key(1))
    return learner, state.params, other.target


def arrays(batch):
    """The fields of a batch as NumPy arrays: plain loops over them are quick."""
    names = ("state", "actions", "avail_actions", "reward", "alive", "terminated", "filled")
    return SimpleNamespace(**{name: np.asarray(getattr(batch, name)) for name in names})


def q_of(learner, params, batch):
    """Action values `[batch, time, agent, action]`."""
    return np.asarray(time_first(jax.jit(learner.mac.unroll)(params, batch).outputs))


def loss_of(learner, params, target, batch):
    return jax.jit(learner.loss)(params, target, batch, jnp.int32(0), KEY)


def best(q, avail):
    return max((a for a in range(len(q)) if avail[a]), key=lambda a: q[a])


def steps_taken(episodes):
    """The indices (episode, time) of all steps."""
    return [(b, t) for b in range(len(episodes.filled)) for t in range(int(episodes.filled[b].sum()))]


def test_some_episodes_terminate_and_some_are_truncated(batch):
    ended = np.asarray(batch["terminated"]).any(1)
    assert ended.any()
    assert not ended.all()


@pytest.mark.parametrize(("double_q", "bootstrap_at_limit"), [(True, True), (True, False), (False, True)])
def test_independent_td_error(foraging, batch, double_q, bootstrap_at_limit):
    options = {"double_q": double_q, "bootstrap_at_limit": bootstrap_at_limit}
    learner, params, target = learner_of(QLearner, foraging.spec, **options)
    q, q_target = q_of(learner, params, batch), q_of(learner, target, batch)
    x, errors = arrays(batch), []
    for b, t in steps_taken(x):
        for i in range(2):
            chooser = (q if double_q else q_target)[b, t + 1, i]
            # After termination no action is available, and no value is added.
            over = x.terminated[b, t] or (not bootstrap_at_limit and t + 1 == foraging.spec.episode_limit)
            ahead = 0.0 if over else q_target[b, t + 1, i, best(chooser, x.avail_actions[b, t + 1, i])]
            errors.append(q[b, t, i, x.actions[b, t, i]] - (x.reward[b, t, i] + 0.9 * ahead))
    loss, metrics = loss_of(learner, params, target, batch)
    np.testing.assert_allclose(loss, np.mean(np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(metrics["td_error_abs"], np.mean(np.abs(errors)), rtol=1e-5)


@pytest.mark.parametrize("game_type", ["mixed", "cooperative"])
def test_an_agent_that_left_is_counted_only_in_cooperative_games(game_type):
    """Hunters leave one by one. In a mixed game that ends their return; in a team they go on earning."""
    env = make("stag_hunt", grid_size=3, hunters=2, hares=2, stags=0, episode_limit=8)
    spec = dataclasses.replace(env.spec, game_type=game_type)
    hunt = play(env, 6, seed=1)
    x = arrays(hunt)
    assert any(not x.alive[b, t].all() for b, t in steps_taken(x)), "some hunter plays on alone"
    learner, params, target = learner_of(QLearner, spec)
    q, q_target = q_of(learner, params, hunt), q_of(learner, target, hunt)
    errors = []
    for b, t in steps_taken(x):
        for i in range(2):
            if game_type == "mixed" and not x.alive[b, t, i]:
                continue
            over = x.terminated[b, t] or (game_type == "mixed" and not x.alive[b, t + 1, i])
            ahead = 0.0 if over else q_target[b, t + 1, i, best(q[b, t + 1, i], x.avail_actions[b, t + 1, i])]
            errors.append(q[b, t, i, x.actions[b, t, i]] - x.reward[b, t, i] - 0.9 * ahead)
    np.testing.assert_allclose(loss_of(learner, params, target, hunt)[0], np.mean(np.square(errors)), rtol=1e-5)


@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
def test_team_td_error(foraging, batch, mixer):
    learner, params, target = learner_of(QLearner, foraging.spec, mixer=mixer, reward_scale=0.5)
    q, q_target = q_of(learner, params, batch), q_of(learner, target, batch)
    x, taken, following = arrays(batch), [], []
    for b, t in steps_taken(x):
        taken.append([q[b, t, i, x.actions[b, t, i]] for i in range(2)])
        chosen = [best(q[b, t + 1, i], x.avail_actions[b, t + 1, i]) if not x.terminated[b, t] else 0 for i in range(2)]
        following.append([q_target[b, t + 1, i, chosen[i]] for i in range(2)])
    at = tuple(np.transpose(steps_taken(x)))
    after = (at[0], at[1] + 1)
    value = params["mixer"](jnp.array(taken), batch.state[at])
    ahead = (1 - x.terminated[at]) * np.asarray(target["mixer"](jnp.array(following), batch.state[after]))
    errors = value - (0.5 * x.reward[at].sum(-1) + 0.9 * ahead)
    np.testing.assert_allclose(loss_of(learner, params, target, batch)[0], np.mean(np.square(errors)), rtol=1e-5)


def test_qtran_losses(foraging, batch):
    options = {"mixer": "qtran", "opt_loss": 0.7, "nopt_min_loss": 0.3}
    learner, params, target = learner_of(QTranLearner, foraging.spec, **options)
    online, frozen = (learner.mac.unroll(p, batch) for p in (params, target))
    hidden, hidden_target = (np.asarray(time_first(u.hidden)) for u in (online, frozen))
    q, x, mixer = np.asarray(time_first(online.outputs)), arrays(batch), params["mixer"]

    def joint(network, hidden, actions, state):
        one_hot = jax.nn.one_hot(jnp.array(actions), foraging.spec.n_actions)
        return np.asarray(network.joint_q(jnp.asarray(hidden), one_hot, jnp.asarray(state)))

    at = tuple(np.transpose(steps_taken(x)))
    after = (at[0], at[1] + 1)
    pairs = [[(b, t, i) for i in range(2)] for b, t in steps_taken(x)]
    actions = [[x.actions[p] for p in pair] for pair in pairs]
    greedy = [[best(q[p], x.avail_actions[p]) for p in pair] for pair in pairs]
    chosen = [
        [best(q[b, t + 1, i], x.avail_actions[b, t + 1, i]) if not x.terminated[b, t] else 0 for b, t, i in pair]
        for pair in pairs
    ]
    ahead = (1 - x.terminated[at]) * joint(target["mixer"], hidden_target[after], chosen, x.state[after])
    here, value = joint(mixer, hidden[at], actions, x.state[at]), np.asarray(mixer.state_value(batch.state[at]))
    td = here - (x.reward[at].sum(-1) + 0.9 * ahead)

    def sum_of(actions):
        return np.array([sum(q[p][a] for p, a in zip(*row, strict=True)) for row in zip(pairs, actions, strict=True)])

    opt = sum_of(greedy) - joint(mixer, hidden[at], greedy, x.state[at]) + value
    nopt = np.minimum(0.0, sum_of(actions) - here + value)
    loss, metrics = loss_of(learner, params, target, batch)
    for name, errors in (("td_loss", td), ("opt_loss", opt), ("nopt_loss", nopt)):
        np.testing.assert_allclose(metrics[name], np.mean(np.square(errors)), rtol=1e-4, err_msg=name)
    expected = np.mean(np.square(td)) + 0.7 * np.mean(np.square(opt)) + 0.3 * np.mean(np.square(nopt))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_coma_losses(foraging, batch):
    options = {"agent_output_type": "pi_logits", "td_lambda": 0.6, "entropy_coef": 0.0, "epsilon_start": 0.2}
    learner, params, target = learner_of(COMALearner, foraging.spec, **options, action_selector="multinomial")
    x, q_target = arrays(batch), np.asarray(target["critic"](batch))
    targets = np.asarray(time_first(learner.critic_targets(target["critic"], batch)))
    for b in range(batch.batch_size):
        for i in range(2):
            later = None
            for t in reversed(range(int(x.filled[b].sum()))):
                value = q_target[b, t + 1, i, x.actions[b, t + 1, i]]
                ahead = value if later is None else 0.4 * value + 0.6 * later
                later = x.reward[b, t].sum() + 0.9 * (1 - x.terminated[b, t]) * ahead
                np.testing.assert_allclose(targets[b, t, i], later, rtol=1e-4, atol=1e-6)

    logits, q = q_of(learner, params, batch), np.asarray(params["critic"](batch))
    terms, critic_errors = [], []
    for b, t in steps_taken(x):
        for i in range(2):
            avail, action = x.avail_actions[b, t, i], x.actions[b, t, i]
            weights = np.where(avail, np.exp(logits[b, t, i]), 0.0)
            pi = np.where(avail, 0.8 * weights / weights.sum() + 0.2 / avail.sum(), 0.0)
            terms.append((q[b, t, i, action] - (pi * q[b, t, i]).sum()) * np.log(pi[action]))
            critic_errors.append(q[b, t, i, action] - targets[b, t, i])
    _, metrics = learner.policy_loss(params["agent"], params["critic"], batch, jnp.int32(0))
    np.testing.assert_allclose(metrics["coma_loss"], -np.mean(terms), rtol=1e-4)
    loss = learner.critic_loss(params["critic"], batch, time_first(jnp.asarray(targets)))
    np.testing.assert_allclose(loss, np.mean(np.square(critic_errors)), rtol=1e-4)


def test_lambda_0_gives_one_step_targets_and_lambda_1_monte_carlo_returns():
    reward, value = jnp.array([1.0, 2.0, 4.0]), jnp.array([10.0, 20.0, 40.0])
    ended, filled = jnp.array([0.0, 0.0, 1.0]), jnp.ones(3)

    def targets(td_lambda):
        columns = (x[:, None, None] for x in (reward, ended, filled, value))
        return lambda_targets(*columns, 0.5, td_lambda)[:, 0, 0]

    np.testing.assert_allclose(targets(0.0), [6.0, 12.0, 4.0])
    np.testing.assert_allclose(targets(1.0), [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4.0])


def test_updates_lower_the_loss_and_are_counted(foraging, batch):
    learner, _, _ = learner_of(QLearner, foraging.spec, mixer="qmix", lr=1e-3)
    state = jax.jit(learner.init)(jax.random.key(0))
    step = jax.jit(lambda s: learner.train(s, batch, jnp.int32(0), KEY))
    losses = []
    for _ in range(21):
        state, metrics = step(state)
        losses.append(float(metrics["loss"]))
    assert losses[20] < losses[0], "the loss before each update, with a target that stays the same"
    assert state.updates == 21

"""Every loss against the same numbers worked out entry by entry, in plain loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers import BasicMAC
from omg.envs import make
from omg.learners import COMALearner, QLearner, QTranLearner
from omg.utils.rl_utils import td_lambda_targets
from tests.conftest import play

KEY = jax.random.key(0)
CONFIG = {"rnn_hidden_dim": 4, "gamma": 0.9, "critic_hidden_dim": 6, "mixing_embed_dim": 4, "hypernet_embed": 4}


@pytest.fixture(scope="module")
def batch(foraging):
    """Six short episodes of one food item: some end early, some run out of time."""
    return play(foraging, 6, seed=3)


def learner_of(cls, spec, **config):
    config = CONFIG | config
    learner = cls(spec, BasicMAC(spec, config), config)
    state, other = learner.init(jax.random.key(0)), learner.init(jax.random.key(1))
    return learner, state.params, other.target


def best(q, avail):
    return max((a for a in range(len(q)) if avail[a]), key=lambda a: q[a])


def test_the_batch_has_both_kinds_of_ending(batch):
    ended = np.asarray(batch["terminated"]).any(1)
    assert ended.any()
    assert not ended.all()


@pytest.mark.parametrize(("double_q", "beyond"), [(True, True), (True, False), (False, True)])
def test_independent_td_error(foraging, batch, double_q, beyond):
    """`beyond`: what follows counts even when the time is up (`bootstrap_at_limit`)."""
    learner, params, target = learner_of(QLearner, foraging.spec, double_q=double_q, bootstrap_at_limit=beyond)
    q = np.asarray(learner.mac.unroll(params["agent"], batch).outputs)
    older = np.asarray(learner.mac.unroll(target["agent"], batch).outputs)
    errors = []
    for b in range(batch.batch_size):
        for t in range(int(batch.filled[b].sum())):
            for i in range(2):
                judge = (q if double_q else older)[b, t + 1, i]
                # Past a real ending nothing is available, and nothing counts.
                over = bool(batch["terminated"][b, t]) or (not beyond and t + 1 == foraging.spec.episode_limit)
                ahead = 0.0 if over else older[b, t + 1, i, best(judge, batch.avail_actions[b, t + 1, i])]
                y = float(batch.reward[b, t, i]) + 0.9 * ahead
                errors.append(q[b, t, i, int(batch.actions[b, t, i])] - y)
    loss, metrics = learner.loss(params, target, batch, jnp.int32(0), KEY)
    np.testing.assert_allclose(loss, np.mean(np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(metrics["td_error_abs"], np.mean(np.abs(errors)), rtol=1e-5)


@pytest.mark.parametrize("kind", ["mixed", "cooperative"])
def test_who_is_gone_counts_only_in_a_team(kind):
    """Hunters leave one by one. In a mixed game that is their end; in a team they go on earning."""
    world = make("stag_hunt", grid_size=3, hunters=2, hares=2, stags=0, episode_limit=8)
    spec = dataclasses.replace(world.spec, kind=kind)
    hunt = play(world, 6, seed=1)
    left_early = [(b, t, i) for b, t, i in np.argwhere(~np.asarray(hunt.alive)) if hunt.filled[b, t]]
    assert left_early, "somebody plays on alone"
    learner, params, target = learner_of(QLearner, spec)
    q = np.asarray(learner.mac.unroll(params["agent"], hunt).outputs)
    older = np.asarray(learner.mac.unroll(target["agent"], hunt).outputs)
    errors = []
    for b in range(hunt.batch_size):
        for t in range(int(hunt.filled[b].sum())):
            for i in range(2):
                if kind == "mixed" and not hunt.alive[b, t, i]:
                    continue
                over = bool(hunt["terminated"][b, t]) or (kind == "mixed" and not hunt.alive[b, t + 1, i])
                ahead = 0.0 if over else older[b, t + 1, i, best(q[b, t + 1, i], hunt.avail_actions[b, t + 1, i])]
                errors.append(q[b, t, i, int(hunt.actions[b, t, i])] - float(hunt.reward[b, t, i]) - 0.9 * ahead)
    loss, _ = learner.loss(params, target, hunt, jnp.int32(0), KEY)
    np.testing.assert_allclose(loss, np.mean(np.square(errors)), rtol=1e-5)


@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
def test_team_td_error(foraging, batch, mixer):
    learner, params, target = learner_of(QLearner, foraging.spec, mixer=mixer, reward_scale=0.5)
    q = np.asarray(learner.mac.unroll(params["agent"], batch).outputs)
    older = np.asarray(learner.mac.unroll(target["agent"], batch).outputs)
    errors = []
    for b in range(batch.batch_size):
        for t in range(int(batch.filled[b].sum())):
            taken = jnp.array([q[b, t, i, int(batch.actions[b, t, i])] for i in range(2)])
            value = params["mixer"](taken, batch.state[b, t])
            ahead = 0.0
            if not batch["terminated"][b, t]:
                chosen = [best(q[b, t + 1, i], batch.avail_actions[b, t + 1, i]) for i in range(2)]
                following = jnp.array([older[b, t + 1, i, chosen[i]] for i in range(2)])
                ahead = target["mixer"](following, batch.state[b, t + 1])
            errors.append(value - (0.5 * batch.reward[b, t].sum() + 0.9 * ahead))
    loss, _ = learner.loss(params, target, batch, jnp.int32(0), KEY)
    np.testing.assert_allclose(loss, np.mean(np.square(errors)), rtol=1e-5)


def test_qtran_losses(foraging, batch):
    learner, params, target = learner_of(QTranLearner, foraging.spec, opt_loss=0.7, nopt_min_loss=0.3)
    online, older = (learner.mac.unroll(p["agent"], batch) for p in (params, target))
    q, mixer = np.asarray(online.outputs), params["mixer"]

    def joint(network, hidden, actions, state):
        return network.joint_q(hidden, jax.nn.one_hot(jnp.array(actions), 6), state)

    td, opt, nopt = [], [], []
    for b in range(batch.batch_size):
        for t in range(int(batch.filled[b].sum())):
            state, actions = batch.state[b, t], [int(a) for a in batch.actions[b, t]]
            greedy = [best(q[b, t, i], batch.avail_actions[b, t, i]) for i in range(2)]
            ahead = 0.0
            if not batch["terminated"][b, t]:
                chosen = [best(q[b, t + 1, i], batch.avail_actions[b, t + 1, i]) for i in range(2)]
                ahead = joint(target["mixer"], older.hidden[b, t + 1], chosen, batch.state[b, t + 1])
            here, value = joint(mixer, online.hidden[b, t], actions, state), mixer.state_value(state)
            td.append(here - (batch.reward[b, t].sum() + 0.9 * ahead))
            at_best = joint(mixer, online.hidden[b, t], greedy, state)
            opt.append(sum(q[b, t, i, greedy[i]] for i in range(2)) - at_best + value)
            nopt.append(min(0.0, sum(q[b, t, i, actions[i]] for i in range(2)) - here + value))
    loss, metrics = learner.loss(params, target, batch, jnp.int32(0), KEY)
    for name, errors in (("td_loss", td), ("opt_loss", opt), ("nopt_loss", nopt)):
        np.testing.assert_allclose(metrics[name], np.mean(np.square(errors)), rtol=1e-4, err_msg=name)
    expected = np.mean(np.square(td)) + 0.7 * np.mean(np.square(opt)) + 0.3 * np.mean(np.square(nopt))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_coma_losses(foraging, batch):
    options = {"agent_output_type": "pi_logits", "td_lambda": 0.6, "entropy_coef": 0.0, "epsilon_start": 0.2}
    learner, params, target = learner_of(COMALearner, foraging.spec, **options, action_selector="multinomial")
    q_older = np.asarray(target["critic"](batch))
    targets = learner.critic_targets(target["critic"], batch)
    for b in range(batch.batch_size):
        length = int(batch.filled[b].sum())
        for i in range(2):
            later = None
            for t in reversed(range(length)):
                value = q_older[b, t + 1, i, int(batch.actions[b, t + 1, i])]
                ahead = value if later is None else 0.4 * value + 0.6 * later
                later = float(batch.reward[b, t].sum()) + 0.9 * (1 - float(batch.terminated[b, t])) * ahead
                np.testing.assert_allclose(targets[b, t, i], later, rtol=1e-4, atol=1e-6)

    logits = np.asarray(learner.mac.unroll(params["agent"], batch).outputs)
    q = np.asarray(params["critic"](batch))
    terms, critic_errors = [], []
    for b in range(batch.batch_size):
        for t in range(int(batch.filled[b].sum())):
            for i in range(2):
                avail, action = np.asarray(batch.avail_actions[b, t, i]), int(batch.actions[b, t, i])
                chances = np.where(avail, np.exp(logits[b, t, i]), 0.0)
                pi = np.where(avail, 0.8 * chances / chances.sum() + 0.2 / avail.sum(), 0.0)
                terms.append((q[b, t, i, action] - (pi * q[b, t, i]).sum()) * np.log(pi[action]))
                critic_errors.append(q[b, t, i, action] - float(targets[b, t, i]))
    _, metrics = learner.policy_loss(params["agent"], params["critic"], batch, jnp.int32(0))
    np.testing.assert_allclose(metrics["coma_loss"], -np.mean(terms), rtol=1e-4)
    loss = learner.critic_loss(params["critic"], batch, targets)
    np.testing.assert_allclose(loss, np.mean(np.square(critic_errors)), rtol=1e-4)


def test_td_lambda_has_monte_carlo_and_one_step_as_its_ends():
    rewards, values = jnp.array([[[1.0], [2.0], [4.0]]]), jnp.array([[[10.0], [20.0], [40.0]]])
    ends, filled = jnp.array([[[0.0], [0.0], [1.0]]]), jnp.ones((1, 3, 1))
    one_step = td_lambda_targets(rewards, ends, filled, values, 0.5, 0.0)
    np.testing.assert_allclose(one_step[0, :, 0], [6.0, 12.0, 4.0])
    everything = td_lambda_targets(rewards, ends, filled, values, 0.5, 1.0)
    np.testing.assert_allclose(everything[0, :, 0], [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4.0])


def test_an_update_lowers_the_loss_and_counts_itself(foraging, batch):
    learner, _, _ = learner_of(QLearner, foraging.spec, mixer="qmix", lr=1e-3)
    state = learner.init(jax.random.key(0))
    step = jax.jit(lambda s: learner.train(s, batch, jnp.int32(0), jnp.int32(0), jnp.int32(1), KEY))
    before = learner.loss(state.params, state.target, batch, jnp.int32(0), KEY)[0]
    for _ in range(20):
        state, _ = step(state)
    assert learner.loss(state.params, state.target, batch, jnp.int32(0), KEY)[0] < before
    assert state.updates == 20


def test_the_target_is_copied_when_its_interval_passes_and_not_before(foraging, batch):
    learner, _, _ = learner_of(QLearner, foraging.spec, target_update_interval=10)
    state = learner.init(jax.random.key(0))
    state = state._replace(target=jax.tree.map(jnp.zeros_like, state.target))
    for since, episode, copied in ((3, 9, False), (9, 11, True), (10, 12, False), (8, 10, True)):
        target = learner.refresh_target(state, jnp.int32(since), jnp.int32(episode)).target
        same = all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), target, state.params)))
        assert same == copied, (since, episode)

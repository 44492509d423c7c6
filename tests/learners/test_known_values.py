"""Losses, targets, masks and belief updates on tiny arrays whose results are computed by hand.

Networks are stand-ins with fixed outputs. The learners' methods are called on plain objects that hold settings only.
"""

import functools
from types import SimpleNamespace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from omg.components.chunks import chop
from omg.components.episode_buffer import EpisodeBatch, FocalBatch, all_agents, masked_mean, pick, refine
from omg.controllers import BasicMAC, HopMAC
from omg.controllers.basic_controller import Unrolled, before_each_step
from omg.controllers.hop_planning import Node, Planner, PlanningSettings
from omg.envs import make
from omg.envs.multiagentenv import MultiAgentEnv, Spec
from omg.envs.stag_hunt import Hunt
from omg.learners import td
from omg.learners.am_learner import AMLearner, VAESettings
from omg.learners.base import Learner, LearnerSettings, LearnerState, TargetSettings, clip_each
from omg.learners.coma_learner import COMALearner, COMALearnerSettings
from omg.learners.hop_learner import HopLearner, HopLearnerSettings, discounted, label, pursued_in_hindsight
from omg.learners.on_policy import Episodes, dealt, shuffled
from omg.learners.ppo_learner import Memories, PPOLearner, PPOSettings, PPOSteps, ReturnStatistics, normalised
from omg.learners.pqn_learner import PQNLearner, PQNSettings
from omg.learners.q_learner import QLearner, QLearnerSettings
from omg.learners.q_learner_4am import QLearner4AM, QLearner4AMSettings
from omg.learners.qtran_learner import QTranLearner, QTranLearnerSettings
from omg.modules.agents import REGISTRY as agents
from omg.modules.agents import AgentSettings, RNNAgent
from omg.modules.am import Conditioning, Inferred, Judge, Seen
from omg.modules.am.base_am import BaseAM, BaseAMSettings, action_loss
from omg.modules.am.liam_am import LIAM, LIAMSettings
from omg.modules.am.omg_am import OMGAM, Chosen, OMGSettings
from omg.modules.goal_sets import EnvGoals
from omg.modules.hop_models import HopModels
from omg.modules.vae import Gaussian

KEY = jax.random.key(0)


def column(values):
    """`[time]` to `[time, batch, agent]` with one episode and one agent."""
    return jnp.asarray(values, jnp.float32)[:, None, None]


def spec_of(n_agents=2, n_actions=2, episode_limit=4, game_type="cooperative"):
    return Spec("test", n_agents, n_actions, 1, 1, episode_limit, game_type)


def episodes(reward, filled, terminated=None, alive=None, actions=None, avail_actions=None, n_actions=2, **fields):
    """Episodes from rewards `[batch, time, agent]` and `filled` `[batch, time]`; the rest has plain defaults."""
    reward = jnp.asarray(reward, jnp.float32)
    rows, time, n = reward.shape
    default = {
        "obs": jnp.zeros((rows, time, n, 1)),
        "state": jnp.zeros((rows, time, 1)),
        "reward": reward,
        "filled": jnp.asarray(filled, bool),
        "terminated": jnp.zeros((rows, time), bool) if terminated is None else jnp.asarray(terminated, bool),
        "alive": jnp.ones(reward.shape, bool) if alive is None else jnp.asarray(alive, bool),
        "actions": jnp.zeros(reward.shape, jnp.int8) if actions is None else jnp.asarray(actions, jnp.int8),
        "avail_actions": jnp.ones((*reward.shape, n_actions), bool)
        if avail_actions is None
        else jnp.asarray(avail_actions, bool),
    }
    return EpisodeBatch(default | {name: jnp.asarray(x) for name, x in fields.items()})


def focal(batch, others=1):
    """The same for a focal agent in every seat; other agents have zeros unless they are replaced."""
    rows, time, seats = batch.reward.shape

    def each(x):
        return jnp.broadcast_to(x[:, :, None], (rows, time, seats, *x.shape[2:]))

    return FocalBatch(
        batch.obs, each(batch.state), batch.avail_actions, batch.actions, batch.reward, batch.reward, batch.alive,
        each(batch.terminated), each(batch.filled), jnp.zeros((rows, time, seats, others, 1)),
        jnp.zeros((rows, time, seats, others), jnp.int32), jnp.ones((rows, time, seats, others), bool),
        jnp.zeros((rows, seats, 0)),
    )  # fmt: skip


class Fixed(eqx.Module):
    """A network whose outputs and recurrent states are given."""

    outputs: jax.Array
    hidden: jax.Array

    def __init__(self, outputs, hidden=None):
        self.outputs = jnp.asarray(outputs, jnp.float32)
        self.hidden = jnp.zeros((*self.outputs.shape[:-1], 1)) if hidden is None else jnp.asarray(hidden, jnp.float32)

    def init_hidden(self, batch, agents):
        return jnp.zeros((batch, agents, 1))

    def unroll(self, inputs, hidden):
        return self.outputs, self.hidden


class FixedMAC:
    """A controller whose networks are `Fixed`."""

    am = SimpleNamespace(loss=lambda params, seen, batch, inferred, chosen, key: (jnp.float32(0.25), {}))
    selector = SimpleNamespace(epsilon=lambda t_env: jnp.float32(0.0))
    policy = BasicMAC.policy

    def unroll(self, params, batch):
        return Unrolled(params["agent"].outputs, params["agent"].hidden)

    def unroll_with_target(self, params, target, batch):
        return self.unroll(params, batch), self.unroll(target, batch)

    def unroll_on(self, network, seen, embedding):
        return Unrolled(network.outputs, network.hidden)

    def unroll_both(self, online, target, seen, embedding, target_embedding=None):
        return self.unroll_on(online, seen, embedding), self.unroll_on(target, seen, embedding)

    def seen(self, batch):
        own = jnp.zeros((batch.obs.shape[1], batch.obs.shape[0], *batch.obs.shape[2:]))
        return Seen(own, own)

    def infer_all(self, params, seen, batch, starts=None):
        return Inferred(jnp.zeros((*seen.own.shape[:-1], 0)))


# --- masks and means


def test_a_masked_mean_divides_by_the_number_of_entries_that_count():
    x, mask = jnp.array([1.0, 5.0, 100.0]), jnp.array([1.0, 1.0, 0.0])
    assert masked_mean(x, mask) == 3.0
    assert masked_mean(x, jnp.zeros(3)) == 0.0
    assert pick(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist() == [2.0, 3.0]


def test_the_recurrent_state_before_a_step_is_that_after_the_previous_one():
    assert before_each_step(jnp.array([[1.0], [2.0], [3.0]])).ravel().tolist() == [0.0, 1.0, 2.0]


# --- temporal differences

ALIVE = [[[1, 1], [1, 1], [0, 1], [0, 1], [0, 1]]]
"""One episode of four steps: the first agent dies in the second step."""


@pytest.mark.parametrize("cooperative", [True, False])
def test_an_agents_death_ends_its_return_only_in_games_without_a_shared_reward(cooperative):
    batch = episodes(np.ones((1, 5, 2)), [[1, 1, 1, 0, 0]], [[0, 0, 1, 0, 0]], ALIVE)
    steps = td.steps_of(batch, TargetSettings(reward_scale=0.5), 4, shared_reward=cooperative)
    np.testing.assert_array_equal(steps.filled[:, 0], [[1, 1], [1, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(steps.acted[:, 0], [[1, 1], [1, 1], [0, 1], [0, 0]])
    np.testing.assert_array_equal(steps.over[:, 0], [[0, 0], [0, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(steps.reward[:, 0], 0.5)
    if cooperative:
        np.testing.assert_array_equal(steps.counted, steps.filled)
        np.testing.assert_array_equal(steps.ended, steps.over)
    else:
        np.testing.assert_array_equal(steps.counted, steps.acted)
        np.testing.assert_array_equal(steps.ended[:, 0], [[0, 0], [1, 0], [1, 1], [1, 0]])
    team = td.of_team(steps, spec_of(game_type="mixed"), 2)
    assert team.reward[:, 0, 0].tolist() == [1.0] * 4
    assert team.ended[:, 0, 0].tolist() == [0, 0, 1, 0], "the team goes on without the first agent"
    assert team.counted[:, 0, 0].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("bootstrap", [True, False])
def test_the_time_limit_ends_an_episode_only_without_bootstrapping(bootstrap):
    batch = episodes(np.zeros((2, 5, 1)), [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], [[0] * 5, [0, 1, 0, 0, 0]])
    over = td.steps_of(batch, TargetSettings(bootstrap_at_limit=bootstrap), 4, True).over[..., 0].T
    assert over[0].tolist() == [0, 0, 0, 0 if bootstrap else 1]
    assert over[1, :2].tolist() == [0, 1]


def test_actions_of_the_step_and_available_actions_before_and_after_it():
    avail = np.array([[[[1, 0]], [[0, 1]], [[1, 1]]]])
    batch = episodes(np.zeros((1, 3, 1)), [[1, 1, 0]], actions=[[[0], [1], [0]]], avail_actions=avail)
    steps = td.steps_of(batch, TargetSettings(), 2, True)
    assert steps.actions.ravel().tolist() == [0, 1]
    np.testing.assert_array_equal(steps.avail_actions[:, 0, 0], avail[0, :2, 0])
    np.testing.assert_array_equal(steps.avail_next[:, 0, 0], avail[0, 1:, 0])


def test_with_double_q_the_online_network_chooses_and_the_target_network_values():
    online, target = jnp.array([[1.0, 5.0, 9.0]]), jnp.array([[7.0, 2.0, 50.0]])
    avail = jnp.array([[True, True, False]])
    assert td.value_of_best(online, target, avail, True).tolist() == [2.0]
    assert td.value_of_best(online, target, avail, False).tolist() == [7.0]
    negative = jnp.array([[-3.0, -1.0, 0.0]])
    assert td.best_action(negative, avail).tolist() == [1], "an unavailable action loses to any negative value"
    slope = jax.grad(lambda q: td.value_of_best(q, target, avail, True).sum())(online)
    np.testing.assert_array_equal(slope, 0.0)


def test_one_step_targets_by_hand():
    def targets(value):
        return td.one_step_targets(jnp.array([1.0, 2.0]), jnp.array([0.0, 1.0]), value, 0.5)

    value = jnp.array([4.0, 100.0])
    assert targets(value).tolist() == [3.0, 2.0]
    np.testing.assert_array_equal(jax.grad(lambda v: targets(v).sum())(value), 0.0)


def test_q_learning_with_td_lambda_targets():
    """Two steps with λ 0.5 and γ 0.5: y_1 = 2 + 0.5·8, y_0 = 1 + 0.5·(0.5·4 + 0.5·y_1); no gradient reaches values."""
    ones = jnp.ones((2, 1))
    steps = td.TeamSteps(jnp.array([[1.0], [2.0]]), 0 * ones, ones)

    def targets(value, td_lambda=0.5):
        return td.q_targets(steps, value, 0.5, td_lambda)

    value = jnp.array([[4.0], [8.0]])
    np.testing.assert_allclose(targets(value)[:, 0], [1 + 0.5 * (2 + 3), 6.0])
    np.testing.assert_allclose(targets(value, 0.0)[:, 0], [3.0, 6.0])
    assert not jax.grad(lambda v: targets(v).sum())(value).any()


def test_lambda_targets_stop_at_the_last_step_of_an_episode():
    """One episode is truncated after two of three steps and one terminates in the second; λ is 0.5, γ is 0.5."""
    reward, value = jnp.array([1.0, 2.0, 64.0]), jnp.array([10.0, 20.0, 40.0])
    both = [jnp.broadcast_to(x[:, None, None], (3, 2, 1)) for x in (reward, value)]
    filled = jnp.broadcast_to(column([1, 1, 0]), (3, 2, 1))
    ended = jnp.concatenate([column([0, 0, 0]), column([0, 1, 0])], 1)
    targets = td.lambda_targets(both[0], ended, filled, both[1], 0.5, 0.5)[..., 0]
    second = 2 + 0.5 * 20
    assert targets[:2, 0].tolist() == [1 + 0.5 * (0.5 * 10 + 0.5 * second), second]
    assert targets[:2, 1].tolist() == [1 + 0.5 * (0.5 * 10 + 0.5 * 2), 2.0]


def test_the_td_loss_is_the_mean_squared_error_over_the_steps_that_count():
    loss, metrics = td.td_loss(jnp.array([1.0, 4.0, 9.0]), jnp.array([2.0, 1.0, -9.0]), jnp.array([1.0, 1.0, 0.0]))
    assert loss == (1 + 9) / 2
    assert metrics["td_error_abs"] == 2.0
    assert metrics["q_taken_mean"] == 2.5
    assert metrics["target_mean"] == 1.5


def q_networks():
    """Online and target values of one step of one episode: `[time, batch, agent, action]`."""
    online = Fixed([[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0, 1.0], [0.0, 6.0]]]], [[[[1.0], [2.0]]], [[[3.0], [4.0]]]])
    target = Fixed([[[[0.0, 0.0], [0.0, 0.0]]], [[[10.0, 30.0], [50.0, 20.0]]]], [[[[0.0], [0.0]]], [[[5.0], [6.0]]]])
    return online, target


STEP = {"reward": [[[1.0, 1.0], [0, 0]]], "filled": [[1, 0]], "actions": [[[1, 0], [0, 0]]]}


class Weighted(eqx.Module):
    """A mixer: the weighted sum of the agents' values plus a multiple of the state."""

    weights: jax.Array

    def __call__(self, agent_qs, state):
        return agent_qs @ self.weights + 100 * state[..., 0]


def test_the_mixer_mixes_the_values_of_the_actions_taken_and_of_the_best_next_actions():
    online, target = q_networks()
    batch = episodes(**STEP, state=[[[0.0], [1.0]]])
    stub = SimpleNamespace(
        settings=QLearnerSettings(gamma=0.5), spec=spec_of(), shared_reward=True, mac=FixedMAC(), mixer_class=Weighted
    )
    stub.next_value = lambda *q: QLearner.next_value(stub, *q)
    params = {"agent": online, "mixer": Weighted(jnp.array([1.0, 10.0]))}
    frozen = {"agent": target, "mixer": Weighted(jnp.array([2.0, 3.0]))}
    _, metrics = jax.jit(lambda *x: QLearner.loss(stub, *x, jnp.int32(0), KEY))(params, frozen, batch)
    assert metrics["q_taken_mean"] == 2 + 10 * 3
    assert metrics["target_mean"] == 1 + 0.5 * (2 * 10 + 3 * 20 + 100), "double Q: action 0 and action 1"


def test_the_focal_agents_loss_is_its_td_loss_plus_the_agent_models_loss():
    online, target = q_networks()
    batch = focal(episodes(**STEP))
    stub = SimpleNamespace(
        settings=QLearner4AMSettings(gamma=0.5), spec=spec_of(), shared_reward=True, mac=FixedMAC(), mixer_class=None,
        _refine_batch=lambda batch: batch, condition=lambda *_: Conditioning(jnp.zeros((2, 1, 2, 0))),
    )  # fmt: skip
    stub.values = lambda *x: QLearner4AM.values(stub, *x)
    stub.target_embedding = lambda target, seen, batch, condition: condition.embedding
    compiled = jax.jit(lambda *x: QLearner4AM.loss(stub, *x, jnp.int32(0), KEY))
    loss, metrics = compiled({"agent": online}, {"agent": target}, batch)
    # Q of the actions taken: 2 and 3. Targets: 1 + 0.5·10 and 1 + 0.5·20.
    assert metrics["td_loss"] == ((2 - 6) ** 2 + (3 - 11) ** 2) / 2
    assert loss == metrics["td_loss"] + 0.25


def test_a_group_with_frozen_partners_learns_the_mixed_value_of_its_own_agents():
    """Two episodes of a group of two: in the second the values, rewards and states are ten times as large."""
    online, target = q_networks()
    online, target = (Fixed(jnp.concatenate([n.outputs, 10 * n.outputs], 2)) for n in (online, target))
    wide = {"reward": [[[1.0, 3.0, 10.0, 30.0], [0] * 4]], "actions": [[[1, 0, 1, 0], [0] * 4]], "filled": [[1, 0]]}
    batch = focal(episodes(**wide))
    state = jnp.array([[[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 10.0, 10.0]]])[..., None]
    stub = SimpleNamespace(
        settings=QLearner4AMSettings(gamma=0.5), spec=spec_of(n_agents=5, game_type="mixed"), shared_reward=True,
        mac=FixedMAC(), mixer_class=Weighted, mixed=2, _refine_batch=lambda batch: batch._replace(state=state),
        condition=lambda *_: Conditioning(jnp.zeros((2, 1, 4, 0))),
    )  # fmt: skip
    stub.values = lambda *x: QLearner4AM.values(stub, *x)
    stub.target_embedding = lambda target, seen, batch, condition: condition.embedding
    params = {"agent": online, "mixer": Weighted(jnp.array([1.0, 10.0]))}
    frozen = {"agent": target, "mixer": Weighted(jnp.array([2.0, 3.0]))}
    _, metrics = jax.jit(lambda *x: QLearner4AM.loss(stub, *x, jnp.int32(0), KEY))(params, frozen, batch)
    taken, after = 2 + 10 * 3, 2 * 10 + 3 * 20 + 100
    # The reward of a group in a mixed game is the sum of its agents' rewards: 1 + 3.
    errors = np.array([1, 10]) * (taken - (4 + 0.5 * after))
    assert metrics["td_loss"] == (errors**2).mean()
    assert metrics["q_taken_mean"] == 5.5 * taken


def test_subgoals_are_judged_from_the_recurrent_state_before_each_step():
    """The policy's loss trains neither the agent model nor, through the choice, the policy."""
    online, _ = q_networks()
    batch = focal(episodes(**STEP))
    stub = SimpleNamespace(artifacts={"vae": None}, mac=FixedMAC())

    def judged(vae, judge, seen, batch, inferred, t_env, key):
        return Conditioning(judge.hidden + inferred.embedding, judge.avail_actions)

    stub.mac.am = SimpleNamespace(choose_subgoals=judged)
    seen = stub.mac.seen(batch)

    def condition(params, embedding):
        arguments = (params, {"vae": None}, seen, batch, Inferred(embedding), jnp.int32(0), KEY)
        return QLearner4AM.condition(stub, *arguments)

    found = condition({"agent": online}, jnp.zeros((2, 1, 2, 1)))
    np.testing.assert_array_equal(found.embedding, before_each_step(online.hidden))
    assert found.chosen.shape == (2, 1, 2, 2), "time first"
    stub.artifacts = {}
    embedding = jnp.ones((2, 1, 2, 1))
    assert condition({"agent": online}, embedding).chosen is None
    np.testing.assert_array_equal(jax.grad(lambda x: condition({"agent": online}, x).embedding.sum())(embedding), 0.0)


def test_the_policys_loss_does_not_train_the_agent_model():
    def embedding(x):
        stub = SimpleNamespace(artifacts={})
        return QLearner4AM.condition(stub, {}, {}, None, None, Inferred(x), jnp.int32(0), KEY).embedding.sum()

    np.testing.assert_array_equal(jax.grad(embedding)(jnp.ones((2, 1, 1, 3))), 0.0)


class Joint(eqx.Module):
    """QTRAN's mixer: a joint value that reads all its inputs, and a constant state value."""

    scale: jax.Array
    value: jax.Array

    def joint_q(self, hidden, actions, state):
        chosen = (actions * jnp.array([[1.0, 2.0], [3.0, 7.0]])).sum((-1, -2))
        return self.scale * (hidden[..., 0].sum(-1) + chosen + state[..., 0])

    def state_value(self, state):
        return self.value * jnp.ones(state.shape[:-1])


def qtran(value):
    """QTRAN's loss, metrics and gradients, with a state value of `value`."""
    online, target = q_networks()
    batch = episodes(**STEP, state=[[[2.0], [1.0]]])
    settings = QTranLearnerSettings(mixer="qtran", gamma=0.5, opt_loss=10.0, nopt_min_loss=100.0)
    stub = SimpleNamespace(settings=settings, spec=spec_of(), shared_reward=True, mac=FixedMAC())
    params = {"agent": online, "mixer": Joint(jnp.float32(1.0), jnp.float32(value))}
    frozen = {"agent": target, "mixer": Joint(jnp.float32(2.0), jnp.float32(0.0))}

    def loss(params):
        return QTranLearner.loss(stub, params, frozen, batch, jnp.int32(0), KEY)

    (total, metrics), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return total, metrics, gradients


def test_the_three_terms_of_qtran_by_hand():
    """Hidden states sum to 3, taken actions are (1, 0), the best ones (1, 1); online values 2 + 3 and 2 + 4.

    In the next state the online network prefers the actions (0, 1), the target network (1, 0).
    """
    joint, joint_best = 3 + (2 + 3) + 2, 3 + (2 + 7) + 2
    y = 1 + 0.5 * 2 * (11 + (1 + 7) + 1)
    for value in (1.0, 9.0):
        total, metrics, gradients = qtran(value)
        opt, nopt = 6 - joint_best + value, min(5 - joint + value, 0)
        assert metrics["td_loss"] == (joint - y) ** 2
        assert metrics["opt_loss"] == opt**2
        assert metrics["nopt_loss"] == nopt**2, "a sum above the joint value costs nothing"
        assert total == metrics["td_loss"] + 10 * opt**2 + 100 * nopt**2
        # Only the TD loss trains the joint value; only the constraints train the agents' values and V(s).
        assert gradients["mixer"].scale == 2 * (joint - y) * joint
        assert gradients["mixer"].value == 10 * 2 * opt + 100 * 2 * nopt
        np.testing.assert_array_equal(gradients["agent"].outputs[0, 0, 0], [0, 20 * opt + 200 * nopt])
        np.testing.assert_array_equal(gradients["agent"].outputs[0, 0, 1], [200 * nopt, 20 * opt])


# --- PPO and PQN


class Entries(NamedTuple):
    """Anything along time."""

    entry: jax.Array
    filled: jax.Array


def chunks_of(log_pi, advantage, avail_actions=None, returns=None, acted=None, counted=None):
    """Chunks of one step per entry, one chunk, one seat. The actions taken are all 0."""
    steps = len(log_pi)
    ones, none = jnp.ones((steps, 1, 1)), jnp.zeros((steps, 1, 1, 1))
    avail = jnp.ones((steps, 2), bool) if avail_actions is None else jnp.asarray(avail_actions, bool)
    return PPOSteps(
        inputs=none,
        state=none[..., :0],
        avail_actions=avail[:, None, None],
        actions=jnp.zeros((steps, 1, 1), jnp.int32),
        log_pi=column(log_pi),
        advantage=column(advantage),
        returns=jnp.zeros((steps, 1, 1)) if returns is None else column(returns),
        filled=ones,
        acted=ones if acted is None else column(acted),
        counted=ones if counted is None else column(counted),
    )


def ppo(logits, chunks, values=None, t_env=0, **settings):
    stub = SimpleNamespace(settings=PPOSettings(**settings), focal=False)
    stub.left = functools.partial(PPOLearner.left, stub)
    stub.criticise = functools.partial(PPOLearner.criticise, stub)
    logits, memory = jnp.asarray(logits, jnp.float32), jnp.zeros((1, 1, 1))
    critic = Fixed(jnp.zeros((len(logits), 1, 1, 1)) if values is None else column(values)[..., None])

    def loss(logits):
        params = {"agent": Fixed(logits[:, None, None]), "critic": critic}
        return PPOLearner.chunk_loss(stub, params, chunks, Memories(memory, memory), jnp.int32(t_env))

    (loss, metrics), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(logits)
    return loss, metrics, slope


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "learns"),
    [
        (1.1, 2.0, -2.2, True),
        (1.5, 2.0, -2.4, False),
        (0.5, 2.0, -1.0, True),
        (0.9, -2.0, 1.8, True),
        (0.5, -2.0, 1.6, False),
        (1.5, -2.0, 3.0, True),
    ],
)
def test_ppos_clipped_objective(ratio, advantage, expected, learns):
    """The second step is masked. Outside the clip range there is a gradient only back towards it."""
    chunks = chunks_of(np.log([0.5 / ratio, 0.5]), [advantage, 1000.0], acted=[1, 0])
    loss, metrics, slope = ppo(np.zeros((2, 2)), chunks, ppo_clip=0.2, value_coef=0.0, entropy_coef=0.0)
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert bool(abs(slope[0]).sum() > 1e-6) == learns
    np.testing.assert_array_equal(slope[1], 0.0)
    assert metrics["clipped"] == float(abs(ratio - 1) > 0.2)


def test_ppos_value_loss_and_its_weight():
    """Dead agents of a team do not act, but their values are learned."""
    chunks = chunks_of(np.log([0.5] * 3), [0.0] * 3, returns=[1.0, 2.0, 50.0], acted=[1, 0, 0], counted=[1, 1, 0])
    loss, metrics, _ = ppo(np.zeros((3, 2)), chunks, [2.0, 5.0, 0.0], value_coef=0.3, entropy_coef=0.0)
    assert metrics["value_loss"] == (1 + 9) / 2
    np.testing.assert_allclose(loss, 0.3 * 5, rtol=1e-6)


def test_unavailable_actions_have_no_entropy():
    avail = [[1, 1, 0], [1, 1, 1]]
    chunks = chunks_of(np.log([0.75, 0.5]), [0.0, 0.0], avail, acted=[1, 0])
    loss, metrics, slope = ppo([[np.log(3.0), 0.0, 50.0], [0.0, 0.0, 0.0]], chunks, entropy_coef=0.1)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(loss, -0.1 * entropy, rtol=1e-5)
    assert np.isfinite(np.asarray(slope)).all()
    assert slope[0, 2] == 0


@pytest.mark.parametrize(("decay", "t_env", "weight"), [(False, 75, 0.1), (True, 0, 0.1), (True, 75, 0.025)])
def test_the_entropy_bonus_may_fall_to_zero_over_the_run(decay, t_env, weight):
    chunks = chunks_of(np.log([0.5]), [0.0])
    loss, _, _ = ppo(np.zeros((1, 2)), chunks, t_env=t_env, entropy_coef=0.1, entropy_decay=decay, t_max=100)
    np.testing.assert_allclose(loss, -weight * np.log(2), rtol=1e-5)


def test_advantages_are_normalised_over_the_steps_that_agents_acted():
    advantage = jnp.array([[[1.0, 10.0]], [[3.0, 30.0]], [[500.0, 60.0]]])
    mask = jnp.array([[[1.0, 1.0]], [[1.0, 1.0]], [[0.0, 1.0]]])
    together, apart = normalised(advantage, mask, None), normalised(advantage, mask, (0, 1))
    counted = np.array([1, 3, 10, 30, 60.0])
    expected = (counted - counted.mean()) / counted.std()
    found = np.array([together[0, 0, 0], together[1, 0, 0], *together[:, 0, 1]])
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(apart[:2, 0, 0], [-1.0, 1.0], rtol=1e-4)
    second = counted[2:]
    np.testing.assert_allclose(apart[:, 0, 1], (second - second.mean()) / second.std(), rtol=1e-4)
    assert not normalised(advantage, jnp.zeros_like(mask), None)[mask > 5].any()


def test_prosocial_agents_mix_their_reward_with_the_teams_mean():
    """In a team, and for one agent with frozen partners: there it sits in the first seat of the first episode."""
    rewards, real = np.array([[[1.0, 3.0]], [[5.0, 8.0]]]), np.ones((2, 1))
    batch = episodes(rewards, real, 0 * real, np.ones((2, 1, 2)), agent_idx=np.array([[0], [1]]))
    team, alone = all_agents(batch, 2), refine(batch, 2)
    for share, expected, own in (
        (0.0, [[1.0, 3.0], [5.0, 8.0]], [1.0, 8.0]),
        (0.25, [[1.25, 2.75], [5.375, 7.625]], [1.25, 7.625]),
        (1.0, [[2.0, 2.0], [6.5, 6.5]], [2.0, 6.5]),
    ):
        stub = SimpleNamespace(settings=PPOSettings(prosocial=share))
        np.testing.assert_allclose(PPOLearner.mixed_rewards(stub, team).reward[:, 0], expected, rtol=1e-6)
        np.testing.assert_allclose(PPOLearner.mixed_rewards(stub, alone).reward[0, 0], own, rtol=1e-6)


def test_prosocial_agents_go_on_earning_after_they_left():
    spec = spec_of(game_type="mixed")
    for share in (0.0, 0.5):
        config = {"prosocial": share, "agent_output_type": "pi_logits"}
        assert PPOLearner(spec, BasicMAC(spec, config), config).shared_reward == (share > 0)


def test_chunks_are_consecutive_stretches_and_the_last_one_is_padded_with_masked_steps():
    """Five steps of two episodes in chunks of two: entry 10·t + b."""
    entry = (10.0 * jnp.arange(5)[:, None] + jnp.arange(2))[..., None]
    along = Entries(entry, jnp.ones((5, 2, 1)))
    chunks, starts = jax.jit(lambda x: chop(2, 4, along, x))((entry[..., None], entry[..., None] + 100))
    np.testing.assert_array_equal(chunks.entry[..., 0], [[0, 1, 20, 21, 40, 41, 0, 0], [10, 11, 30, 31, 0, 0, 0, 0]])
    np.testing.assert_array_equal(chunks.filled[..., 0], [[1] * 6 + [0, 0], [1] * 4 + [0] * 4])
    np.testing.assert_array_equal(starts[0][:, 0, 0], [0, 1, 20, 21, 40, 41, 0, 0])
    np.testing.assert_array_equal(starts[1][:, 0, 0], [100, 101, 120, 121, 140, 141, 0, 0])


def test_minibatches_have_equally_many_chunks_with_steps():
    """Of 8 chunks 5 hold steps: two minibatches of 4 chunks take 3 and 2 of them, and no chunk twice."""
    order = shuffled(jnp.arange(8) < 5, KEY)
    parts = [np.asarray(dealt(order, jnp.int32(i), jnp.int32(2), 4)) for i in range(2)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(8))
    assert [int((part < 5).sum()) for part in parts] == [3, 2]


def test_chunks_without_any_step_come_last_in_every_random_order():
    filled = jnp.array([True, False, True, True, False, True])
    orders = np.asarray(jax.jit(jax.vmap(lambda k: shuffled(filled, k)))(jax.random.split(KEY, 50)))
    assert {tuple(sorted(order[:4])) for order in orders} == {(0, 2, 3, 5)}
    assert len({tuple(order[:4]) for order in orders}) > 10


def test_returns_are_normalised_by_running_statistics():
    """After one batch its own mean and deviation; after the second a weighted mean of both, free of bias."""
    none = ReturnStatistics.none()
    assert [float(x) for x in none.scale()] == [0.0, 1.0]
    first = none.updated(jnp.array([1.0, 3.0, 99.0]), jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(first.scale(), [2.0, 1.0], rtol=1e-5)
    second = first.updated(jnp.array([5.0, 9.0]), jnp.ones(2))
    weights = np.array([0.99, 1.0]) / 1.99
    mean, square = weights @ [2.0, 7.0], weights @ [5.0, 53.0]
    np.testing.assert_allclose(second.scale(), [mean, np.sqrt(square - mean**2)], rtol=1e-4)
    each = ReturnStatistics.none(2).updated(
        jnp.array([[[1.0, 10.0]], [[3.0, 99.0]]]), jnp.array([[[1.0, 1]], [[1, 0]]])
    )
    np.testing.assert_allclose(each.scale()[0], [2.0, 10.0], rtol=1e-5, err_msg="every seat by itself")


def advantages_by_hand(reward, value, ended, steps, gamma, gae_lambda):
    """A_t = δ_t + γλ(1 - ended_t)·A_{t+1} with δ_t = r_t + γ(1 - ended_t)·V_{t+1} - V_t."""
    advantage, later = np.zeros(steps), 0.0
    for t in reversed(range(steps)):
        delta = reward[t] + gamma * (1 - ended[t]) * value[t + 1] - value[t]
        advantage[t] = later = delta + gamma * gae_lambda * (1 - ended[t]) * later
    return advantage


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("cooperative", [True, False])
def test_generalised_advantages_by_a_loop(bootstrap, cooperative):
    """Three episodes: terminated after two steps, truncated at the limit, terminated at the limit; one agent dies."""
    rng = np.random.default_rng(0)
    reward, values = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 5, 2))
    steps, terminated = [2, 4, 4], np.zeros((3, 5))
    terminated[0, 1] = terminated[2, 3] = 1
    filled = np.arange(5) < np.array(steps)[:, None]
    alive = np.ones((3, 5, 2))
    alive[1, 2:, 0] = 0
    batch = focal(episodes(reward, filled, terminated, alive))
    settings = PPOSettings(
        gamma=0.9, gae_lambda=0.7, seq_len=4, bootstrap_at_limit=bootstrap, reward_scale=0.5, value_norm=False
    )
    stub = SimpleNamespace(
        settings=settings, mac=FixedMAC(), artifacts={}, spec=spec_of(), shared_reward=cooperative, per_seat=True,
        focal=False,
    )  # fmt: skip
    for name in ("mixed_rewards", "intrinsic", "criticise"):
        setattr(stub, name, functools.partial(getattr(PPOLearner, name), stub))
    outputs = (np.swapaxes(values, 0, 1)[..., None] - 1) / 2
    critic = Fixed(outputs, outputs + 7)
    agent = Fixed(np.zeros((5, 3, 2, 2)), np.ones((5, 3, 2, 1)))

    @jax.jit
    def prepare(params, batch):
        # The critic's outputs have half the scale of returns, and are 1 too low.
        statistics = ReturnStatistics(jnp.float32(1.0), jnp.float32(5.0), jnp.float32(1.0))
        return PPOLearner.prepare(stub, params, {"returns": statistics}, batch, jnp.int32(0), KEY)

    rollout, metrics = prepare({"agent": agent, "critic": critic}, batch)
    chunks = jax.tree.map(np.asarray, rollout.along)
    advantages, seen_values = [[], []], []
    for b in range(3):
        for i in range(2):
            ended = terminated[b].copy()
            ended[3] = max(ended[3], not bootstrap)
            if not cooperative:
                ended[:4] = np.maximum(ended[:4], 1 - alive[b, 1:, i])
            found = advantages_by_hand(0.5 * reward[b, :, i], values[b, :, i], ended, steps[b], 0.9, 0.7)
            counted = [t for t in range(steps[b]) if cooperative or alive[b, t, i]]
            np.testing.assert_allclose(
                2 * chunks.returns[counted, b, i] + 1, (found + values[b, : steps[b], i])[counted], rtol=1e-4
            )
            acted = [t for t in range(steps[b]) if alive[b, t, i]]
            advantages[i] += [(t, b, found[t]) for t in acted]
            seen_values += [values[b, t, i] for t in acted]
            np.testing.assert_array_equal(np.flatnonzero(chunks.counted[:, b, i]), counted)
            np.testing.assert_array_equal(np.flatnonzero(chunks.acted[:, b, i]), acted)
    for i, of_seat in enumerate(advantages):
        raw = np.array([a for _, _, a in of_seat])
        found = [chunks.advantage[t, b, i] for t, b, _ in of_seat]
        np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(), rtol=1e-4)
    np.testing.assert_allclose(metrics["value_mean"], np.mean(seen_values), rtol=1e-5)
    np.testing.assert_allclose(chunks.log_pi, np.log(0.5), rtol=1e-6)
    for memory in rollout.memory:
        np.testing.assert_array_equal(memory[0], 0.0, err_msg="the state before the first step")


def test_the_loss_of_on_policy_learners_includes_the_agent_models_loss():
    stub = SimpleNamespace(mac=FixedMAC(), chunk_loss=lambda params, chunks, starts, t_env: (jnp.float32(1.0), {}))
    loss, _ = PPOLearner.total_loss(stub, {}, None, None, Episodes(focal(episodes(**STEP))), jnp.int32(0), KEY)
    assert loss == 1.25


def test_a_central_critic_values_each_agent_from_its_own_input_and_the_state():
    """Like the plain network on both."""
    spec = spec_of(game_type="mixed")
    config = {"central_critic": True, "agent_output_type": "pi_logits", "rnn_hidden_dim": 4}
    learner = PPOLearner(spec, BasicMAC(spec, config), config)
    critic = learner.new_critic(KEY)
    own = jax.random.normal(KEY, (3, 2, spec.n_agents, learner.mac.input_size))
    state = jax.random.normal(jax.random.fold_in(KEY, 1), (3, 2, 1, spec.state_size))
    start = jnp.ones((2, spec.n_agents, 4))
    values, hidden = learner.criticise(critic, own, state, start)
    both = jnp.concatenate([own, jnp.broadcast_to(state, (*own.shape[:3], spec.state_size))], -1)
    outputs, expected = RNNAgent.unroll(critic, both, start)
    np.testing.assert_allclose(values, outputs[..., 0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_with_partners_the_central_critic_sees_the_state_of_each_seats_own_episode():
    spec = spec_of(game_type="mixed")
    config = {"central_critic": True, "agent_output_type": "pi_logits", "rnn_hidden_dim": 4}
    states = np.arange(6.0).reshape(1, 3, 2, 1)
    batch = focal(episodes([[[0.0, 0.0]] * 3], [[1, 1, 0]]))._replace(state=jnp.asarray(states, jnp.float32))
    for is_focal, seen in ((True, states), (False, states[:, :, :1])):
        learner = PPOLearner(spec, BasicMAC(spec, config), config, is_focal)
        state = learner.init(KEY)
        rollout, _ = learner.prepare(state.params, state.target, batch, jnp.int32(0), KEY)
        np.testing.assert_array_equal(rollout.along.state, np.swapaxes(seen, 0, 1)[:-1])


def test_the_td_lambda_targets_of_pqn_by_a_loop():
    """The next value is the best one of the online network; with a mixer it is the sum over agents."""
    rng = np.random.default_rng(1)
    q, reward = rng.normal(size=(4, 1, 2, 2)), rng.normal(size=(1, 4, 2))
    batch = focal(episodes(reward, [[1, 1, 1, 0]], [[0, 0, 1, 0]]))
    for mixer in (None, "vdn"):
        stub = SimpleNamespace(
            settings=PQNSettings(gamma=0.9, td_lambda=0.7, mixer=mixer), mac=FixedMAC(), artifacts={}, focal=False,
            spec=spec_of(game_type="mixed"), shared_reward=False, mixer_class=mixer, mixed=2,
        )  # fmt: skip
        params = {"agent": Fixed(q, np.ones((4, 1, 2, 1))), "mixer": lambda q, state: q.sum(-1)}
        rollout, _ = PQNLearner.prepare(stub, params, {}, batch, jnp.int32(0), KEY)
        value, r = q.max(-1)[:, 0], reward[0]
        if mixer:
            value, r = value.sum(-1, keepdims=True), r.sum(-1, keepdims=True)
        later, expected = np.zeros(value.shape[1:]), {}
        for t in reversed(range(3)):
            ended = t == 2
            expected[t] = later = r[t] + 0.9 * (0 if ended else 1) * (0.3 * value[t + 1] + 0.7 * later)
        for t in range(3):
            np.testing.assert_allclose(rollout.along.targets[t, 0], expected[t], rtol=1e-5)


def test_the_learning_rate_falls_linearly_with_the_steps_of_the_run():
    for t_env, left in ((0, 1.0), (50, 0.5), (100, 0.0), (500, 0.0)):
        stub = SimpleNamespace(settings=LearnerSettings(lr_decay=True, t_max=100))
        stub.left = functools.partial(Learner.left, stub)
        assert Learner.decayed(stub, jnp.float32(3.0), jnp.int32(t_env)) == 3.0 * left
    assert Learner.decayed(SimpleNamespace(settings=LearnerSettings(lr_decay=False)), 3.0, jnp.int32(50)) == 3.0


# --- COMA


def coma(epsilon=0.0):
    """One step of two agents, of which the second is dead. π of the first: 0.75, 0.25; its third action is masked."""
    batch = episodes(
        [[[2.0, 4.0], [0, 0]]], [[1, 0]], alive=[[[1, 0], [1, 0]]], actions=[[[1, 0], [0, 0]]],
        avail_actions=np.broadcast_to([1, 1, 0], (1, 2, 2, 3)),
    )  # fmt: skip
    stub = SimpleNamespace(
        settings=COMALearnerSettings(gamma=0.5, td_lambda=0.5, entropy_coef=0.1),
        spec=spec_of(game_type="mixed", n_actions=3), shared_reward=False, mac=FixedMAC(),
    )  # fmt: skip
    stub._steps = lambda batch: COMALearner._steps(stub, batch)
    stub.mac.selector = SimpleNamespace(epsilon=lambda t_env: jnp.float32(epsilon))
    agent = Fixed(np.broadcast_to([np.log(3.0), 0.0, 50.0], (2, 1, 2, 3)))
    q = jnp.broadcast_to(jnp.array([8.0, 4.0, 1000.0]), (1, 2, 2, 3))
    return stub, batch, agent, lambda batch: q


def test_comas_advantage_and_entropy_by_hand():
    stub, batch, agent, critic = coma()
    loss, metrics = jax.jit(lambda: COMALearner.policy_loss(stub, agent, critic, batch, jnp.int32(0)))()
    advantage, entropy = 4 - (0.75 * 8 + 0.25 * 4), -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(metrics["advantage_mean"], advantage, rtol=1e-6)
    np.testing.assert_allclose(metrics["coma_loss"], -advantage * np.log(0.25), rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(loss, -advantage * np.log(0.25) - 0.1 * entropy, rtol=1e-5)


def test_comas_policy_gradient_does_not_pass_through_the_baseline():
    stub, batch, agent, critic = coma()

    def coma_loss(logits):
        return COMALearner.policy_loss(stub, Fixed(logits), critic, batch, jnp.int32(0))[1]["coma_loss"]

    # d log π(1) / d logits = one_hot(1) - π, and the advantage is -3.
    slope = jax.jit(jax.grad(coma_loss))(agent.outputs)
    np.testing.assert_allclose(slope[0, 0, 0], 3 * np.array([-0.75, 0.75, 0.0]), atol=1e-4)
    np.testing.assert_array_equal(slope[0, 0, 1], 0.0)


def test_comas_exploration_is_part_of_its_policy():
    stub, batch, agent, critic = coma(epsilon=0.5)
    _, metrics = jax.jit(lambda: COMALearner.policy_loss(stub, agent, critic, batch, jnp.int32(0)))()
    pi = 0.5 * np.array([0.75, 0.25]) + 0.25
    np.testing.assert_allclose(metrics["advantage_mean"], 4 - (pi * [8, 4]).sum(), rtol=1e-6)


def test_comas_critic_learns_the_teams_return_for_dead_agents_too():
    stub, batch, _, critic = coma()
    targets = COMALearner.critic_targets(stub, critic, batch)
    np.testing.assert_allclose(targets[0, 0], [2 + 4 + 0.5 * 8] * 2)
    loss = COMALearner.critic_loss(stub, critic, batch, targets)
    assert loss == ((4 - 10) ** 2 + (8 - 10) ** 2) / 2


# --- agent models


def with_others(alive, actions, obs=None):
    """One episode of two steps of three, one focal agent, two others: arrays `[time, other]`."""
    batch = focal(episodes(np.zeros((1, 4, 1)), [[1, 1, 0, 0]]), others=2)
    return batch._replace(
        others_alive=jnp.asarray(alive, bool)[None, :, None],
        others_actions=jnp.asarray(actions, jnp.int32)[None, :, None],
        others_obs=batch.others_obs if obs is None else jnp.asarray(obs, jnp.float32)[None, :, None, :, None],
    )


OTHERS = with_others(
    alive=[[1, 1], [1, 0], [1, 1], [1, 1]],
    actions=[[0, 1], [1, 0], [0, 0], [0, 0]],
    obs=[[1, 2], [3, 4], [5, 6], [7, 8]],
)
LOGITS = jnp.broadcast_to(jnp.log(jnp.array([3.0, 1.0])), (4, 1, 1, 2, 2))
"""Probabilities 0.75 and 0.25 of the actions of two other agents, at four time steps."""


def test_predictions_of_dead_agents_and_after_the_end_do_not_count():
    loss, accuracy = action_loss(LOGITS, OTHERS)
    np.testing.assert_allclose(loss, -(np.log(0.75) + 2 * np.log(0.25)) / 3, rtol=1e-6)
    np.testing.assert_allclose(accuracy, 1 / 3, rtol=1e-6)
    stub = SimpleNamespace(settings=BaseAMSettings(am_loss_coef=0.5))
    weighted, metrics = BaseAM.loss(stub, {}, None, OTHERS, Inferred(jnp.zeros((4, 1, 1, 4)), rest=LOGITS), None, KEY)
    np.testing.assert_allclose(weighted, 0.5 * loss, rtol=1e-6)
    assert metrics["am_loss"] == loss


def test_liams_loss_is_squared_error_plus_cross_entropy_over_living_agents():
    decoded = jnp.concatenate([jnp.zeros((4, 1, 1, 2, 1)), LOGITS], -1)
    stub = SimpleNamespace(settings=LIAMSettings(am_loss_coef=0.5), spec=spec_of(n_agents=3))
    stub._decode = lambda params, z: LIAM._decode(stub, params, z)
    params = {"liam_am": SimpleNamespace(decoder=lambda z: decoded.reshape(4, 1, 1, -1))}
    loss, metrics = LIAM.loss(stub, params, None, OTHERS, Inferred(jnp.zeros((4, 1, 1, 3))), None, KEY)
    squared, cross_entropy = (1 + 4 + 9) / 3, -(np.log(0.75) + 2 * np.log(0.25)) / 3
    np.testing.assert_allclose(metrics["am_obs_loss"], squared, rtol=1e-6)
    np.testing.assert_allclose(metrics["am_loss"], squared + cross_entropy, rtol=1e-6)
    np.testing.assert_allclose(loss, 0.5 * (squared + cross_entropy), rtol=1e-6)


def test_the_subgoal_models_loss_counts_steps_of_a_living_agent():
    """The first two steps count: squared errors 1 and 2.25, KL(N(1, 1) ‖ N(5, 4)) and KL(N(2, 1) ‖ N(4, 4))."""
    batch = focal(episodes(np.zeros((1, 4, 1)), [[1, 1, 1, 0]], alive=[[[1], [1], [0], [0]]]))
    seen = Seen(column([0, 0, 0, 0])[..., None], column([2, 3, 50, 70])[..., None])
    mu, zero = column([1, 2, 3, 4])[..., None], column([0, 0, 0, 0])[..., None]
    vae = SimpleNamespace(standard=lambda s: s / 2)
    away = column([4, 2, 9, 9])[..., None]
    chosen = Chosen(Gaussian(mu + away, zero + np.log(4.0)), column([1, 2, 3, 4]), vae)
    stub = SimpleNamespace(settings=OMGSettings(cvae_beta=0.25, am_loss_coef=0.5))
    # The decoder maps a sample of the posterior to zero, and its mean to something else.
    sample = mu + jax.random.normal(KEY, mu.shape)
    params = {"cvae": SimpleNamespace(decode=lambda g, condition: 1000 * (g - sample))}
    loss, metrics = OMGAM.loss(stub, params, seen, batch, Inferred(mu, zero, None), chosen, KEY)
    divergence = 0.5 * (np.log(4) + (1 + (16 + 4) / 2) / 4 - 1)
    np.testing.assert_allclose(metrics["recons_loss"], (1 + 2.25) / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["kl_loss"], divergence, rtol=1e-5)
    assert metrics["latent_distance"] == 3.0
    assert metrics["subgoal_ahead"] == 1.5
    np.testing.assert_allclose(loss, 0.5 * (1.625 + 0.25 * divergence), rtol=1e-5)


def test_eta_is_the_probability_of_learning_on_the_hindsight_subgoal():
    """With η 0.5: the chosen state's mean where the noise lies below it, else the inferred one, without gradients."""
    rows = 200
    batch = focal(episodes(np.zeros((rows, 3, 1)), np.broadcast_to([1, 1, 0], (rows, 3))))
    s = jnp.broadcast_to(jnp.arange(3.0)[:, None, None, None], (3, rows, 1, 1))
    vae = SimpleNamespace(encode=lambda s: Gaussian(10 * s, -s))
    # The second candidate is better than the first one.
    values = jnp.stack([jnp.zeros((2, rows, 1, 2)), jnp.ones((2, rows, 1, 2))])
    network = SimpleNamespace(consider=lambda own, latents, hidden, horizon, present: values)
    judge = Judge(network, jnp.zeros((3, rows, 1, 1)), jnp.ones((3, rows, 1, 2), bool))
    am = OMGAM(spec_of(1), 1, {"H": 2, "eta_start": 0.5, "eta_finish": 0.5, "vae_latent_dim": 1})

    @jax.jit
    def conditioned(embedding):
        inferred = Inferred(embedding, embedding)
        goals, chosen, used = am.choose_subgoals(vae, judge, Seen(s, s), batch, inferred, jnp.int32(0), KEY)
        return goals, chosen._replace(vae=None), used

    goals, chosen, used = conditioned(jnp.full((3, rows, 1, 1), -5.0))
    np.testing.assert_array_equal(chosen.subgoal.mu[:2, :, 0, 0], 20.0)
    np.testing.assert_array_equal(chosen.subgoal.log_var[:2, :, 0, 0], -2.0)
    np.testing.assert_array_equal(chosen.ahead[:, 0, 0], [2, 1, 0])
    noise = jax.random.uniform(jax.random.split(KEY)[1], (3, rows, 1))
    np.testing.assert_array_equal(goals[:2, ..., 0], np.where(noise < 0.5, 20.0, -5.0)[:2])
    np.testing.assert_array_equal(goals[2], -5.0)
    np.testing.assert_array_equal(used, goals == 20.0)
    slope = jax.grad(lambda x: conditioned(x)[0].sum())(jnp.zeros((3, rows, 1, 1)))
    np.testing.assert_array_equal(slope, 0.0)


def test_the_pre_training_loss_is_reconstruction_plus_weighted_kl():
    stub = SimpleNamespace(settings=VAESettings(vae_beta=0.1))
    vae = SimpleNamespace(losses=lambda s, key: (jnp.array([1.0, 3.0]), jnp.array([10.0, 30.0])))
    loss, metrics = AMLearner.loss(stub, vae, jnp.zeros((2, 1)), KEY)
    assert loss == 2 + 0.1 * 20
    assert metrics["kl_loss"] == 20.0


# --- HOP


def test_labels_are_the_goals_reached_next():
    reached = jnp.array([[[-1, -1], [2, -1], [-1, -1], [-1, 0], [1, 1]]])
    pursued = label(reached, jnp.array([[1.0, 1, 1, 1, 0]]))
    assert pursued[0, :4, 0].tolist() == [2, 2, -1, -1], "a goal after the end of the episode is no label"
    assert pursued[0, :4, 1].tolist() == [0, 0, 0, 0]


def test_failures_are_labelled_by_what_explains_the_actions():
    """Two hares, a stag, and none. The first agent takes a hare and fails afterwards; the second one always fails."""
    next_goal = jnp.array([[[0, -1], [-1, -1], [-1, -1], [-1, -1]]])
    acted = jnp.array([[[1.0, 1], [1, 1], [1, 1], [0, 1]]])
    is_open = jnp.ones((1, 4, 4), bool).at[0, 1:, 0].set(False).at[0, 3, 2].set(False)
    likelihood = jnp.array([[[[0.1, 0.2, 0.3, 0.4]] * 2, [[0.5, 0.3, 0.9, 0.2]] * 2, [[0.6, 0.1, 0.8, 0.5]] * 2,
                             [[0.9, 0.7, 0.6, 0.25]] * 2]])  # fmt: skip
    prior, type_of = jnp.array([0.4, 0.5, 0.1]), jnp.array([0, 0, 1, 2])
    found = np.asarray(jax.jit(pursued_in_hindsight)(next_goal, acted, jnp.log(likelihood), is_open, prior, type_of))
    np.testing.assert_allclose(found[0, 0, 0], [1, 0, 0, 0], err_msg="the goal that it reached next")
    # When its failure begins, the first hare is gone; it takes two more steps.
    first = np.array([0, 0.4 * 0.3 * 0.1, 0.5 * 0.9 * 0.8, 0.1 * 0.2 * 0.5])
    for t in (1, 2):
        np.testing.assert_allclose(found[0, t, 0], first / first.sum(), rtol=1e-5)
    # Who wanted the first hare wants nothing after step 0, and who wanted the stag nothing at step 3.
    second = np.array([0.2 * 0.1 * 0.2 * 0.5 * 0.25, 0.2 * 0.2 * 0.3 * 0.1 * 0.7, 0.5 * 0.3 * 0.9 * 0.8 * 0.25,
                       0.1 * 0.4 * 0.2 * 0.5 * 0.25])  # fmt: skip
    second /= second.sum()
    np.testing.assert_allclose(found[0, 0, 1], second, rtol=1e-5)
    np.testing.assert_allclose(found[0, 2, 1], [0, second[1], second[2], second[3] + second[0]], rtol=1e-5)
    np.testing.assert_allclose(found[0, 3, 1], [0, second[1], 0, 1 - second[1]], rtol=1e-5)


def test_returns_end_where_an_agent_leaves():
    reward = jnp.array([[[1.0, 1], [1, 1], [4, 4]]])
    continues = jnp.array([[[1, 1], [0, 1], [0, 0]]], bool)
    np.testing.assert_allclose(discounted(reward, continues, 0.5)[0, :, 0], [1.5, 1, 4])
    np.testing.assert_allclose(discounted(reward, continues, 0.5)[0, :, 1], [2.5, 3, 4])


def hop_loss(is_focal, shared_reward, bootstrap=False, leaves=1):
    """HOP's loss on two steps of two agents that take action 0, as the search did. The first agent is the focal one.

    The second agent leaves after so many steps. The action model gives action 0 the probabilities 0.75 and 0.5 for the
    two agents, the policy 0.5 and 0.25. All values are 1.
    """
    batch = episodes(
        [[[2.0, 4.0], [2.0, 8.0], [0, 0]]], [[1, 1, 0]], agent_idx=[[0]],
        alive=[[[1, int(t < leaves)] for t in range(3)]],
        reached=np.full((1, 3, 2), -1), search=np.broadcast_to([1.0, 0.0], (1, 3, 2, 2)),
        is_open=np.ones((1, 3, 2), bool), sample=np.zeros((1, 3, 2, 2)),
    )  # fmt: skip
    models = SimpleNamespace(
        none=1, n_goals=2, goals=SimpleNamespace(n=1),
        type_of=jnp.arange(2),
        logits_of_goals=lambda model, obs, avail: jnp.broadcast_to(
            jnp.log(model)[:, None], (*avail.shape[:-1], 2, avail.shape[-1])
        ),
        goals_of_others=lambda obs, goals, seats: obs[..., None, :],
        policy_value=lambda agent, obs, others, avail: (
            jnp.broadcast_to(jnp.log(agent), avail.shape), jnp.ones(avail.shape[:-1])
        ),
    )  # fmt: skip
    settings = HopLearnerSettings(
        value_coef=0.5, model_coef=0.25, reward_scale=0.5, gamma=0.5, bootstrap_at_limit=bootstrap
    )
    stub = SimpleNamespace(
        mac=SimpleNamespace(
            models=models, first_prior=jnp.array([0.9, 0.1]), smoothed=lambda p, avail: p, env=MultiAgentEnv()
        ),
        spec=spec_of(episode_limit=2), settings=settings, focal=is_focal, shared_reward=shared_reward,
        exclusive_goals=False, exclusive=lambda *_: jnp.float32(0.0),
    )  # fmt: skip
    params = {"model": jnp.array([[3.0, 1.0], [1.0, 1.0]]), "agent": jnp.array([[1.0, 1.0], [1.0, 3.0]])}
    return HopLearner.loss(stub, params, {}, batch, jnp.int32(0), KEY)


def test_a_team_learns_from_all_agents_and_a_focal_agent_from_itself():
    """Returns of the first agent: 1 + 0.5·1 and 1; of the second: 2, because it leaves."""
    loss, team = hop_loss(False, False)
    model = -(2 * np.log(0.75) + np.log(0.5)) / 3
    policy = -(2 * np.log(0.5) + np.log(0.25)) / 3
    value = (0.5**2 + 0 + 1) / 3
    np.testing.assert_allclose(team["model_loss"], model, rtol=1e-5)
    np.testing.assert_allclose(team["policy_loss"], policy, rtol=1e-5)
    np.testing.assert_allclose(team["value_loss"], value, rtol=1e-5)
    np.testing.assert_allclose(loss, policy + 0.5 * value + 0.25 * model, rtol=1e-5)
    _, alone = hop_loss(True, False)
    np.testing.assert_allclose(alone["model_loss"], np.log(2), rtol=1e-5, err_msg="the co-player's actions only")
    np.testing.assert_allclose(alone["policy_loss"], np.log(2), rtol=1e-5, err_msg="the focal agent's policy only")
    np.testing.assert_allclose(alone["value_loss"], 0.5**2 / 2, rtol=1e-5, err_msg="the focal agent's value only")


def test_the_value_at_the_time_limit_counts_if_it_is_no_end():
    """The first agent's returns: 1 + 0.5·(1 + 0.5·1) and 1 + 0.5·1; the second leaves at the limit: 2 + 0.5·4 and 4."""
    _, metrics = hop_loss(False, False, bootstrap=True, leaves=2)
    np.testing.assert_allclose(metrics["value_loss"], (0.75**2 + 0.5**2 + 3**2 + 3**2) / 4, rtol=1e-5)


def test_agents_of_a_team_that_died_have_values_but_no_policies():
    """With a shared reward the second agent's returns are 2 + 0.5·4 and 4."""
    _, metrics = hop_loss(False, True)
    np.testing.assert_allclose(metrics["value_loss"], (0.5**2 + 0 + 3**2 + 3**2) / 4, rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], -(2 * np.log(0.5) + np.log(0.25)) / 3, rtol=1e-5)


@pytest.fixture(scope="module")
def hunt():
    return hunt_with()


def hunt_with(**config):
    """Two parallel hunts with a hare, a hare and a stag; co-players take action 0 with a probability per goal."""
    env = make("stag_hunt", grid_size=4, hunters=2, hares=2, stags=1)
    of_types = {"goal_memory": "types", "hop_alpha": 0.6}
    mac = HopMAC(env, {"hop_hidden_dim": 4, "likelihood_epsilon": 0.1, **of_types, **config})
    of_goal = jnp.log(jnp.array([[0.8, 0.05, 0.05, 0.05, 0.05], [0.2] * 5, [0.1, 0.6, 0.1, 0.1, 0.1], [0.2] * 5]))
    mac.models.co_player_logits = lambda model, obs, goal, avail: jnp.where(avail, of_goal, -1e9)
    start = Hunt(
        jnp.array([[1, 1], [2, 2]]), jnp.array([[0, 0], [3, 3], [3, 0]]), jnp.ones(2, bool), jnp.ones(3, bool),
        jnp.full(2, -1, jnp.int32), jnp.int32(0),
    )  # fmt: skip
    # In the middle of the board all five actions are available.
    return env, mac, start


def observed(hunt, after, actions, memory=None, running=(True, True)):
    """The memory before and after one step from the start in two environments, and what is recorded."""
    env, mac, start = hunt

    def observe(memory, states, actions, running):
        seen = jax.tree.map(lambda x: jnp.stack([x, x]), env._timestep(start, jnp.zeros(2)))
        shown = jax.vmap(env._timestep)(states, jnp.zeros((2, 2)))
        return mac.observe({"model": None}, memory, seen, actions, states, shown, running)

    if not hasattr(mac, "compiled"):
        mac.compiled = jax.jit(observe)
    memory = mac.init_memory(None, 2) if memory is None else memory
    states = jax.tree.map(lambda *x: np.stack(x), *after)
    return memory, *mac.compiled(memory, states, np.array(actions), np.array(running))


PRIOR = np.array([0.2375, 0.2375, 0.475, 0.05])


def test_beliefs_follow_bayes_rule_over_open_goals(hunt):
    """In the second hunt the first hare is taken by a hunter that is not observed here."""
    _, _, start = hunt
    closed = start._replace(there=jnp.array([False, True, True]))
    _, memory, record = observed(hunt, (start, closed), [[0, 1], [0, 1]])
    stays, moves = (0.9 * np.array(p) + 0.1 / 5 for p in ([0.8, 0.2, 0.1, 0.2], [0.05, 0.2, 0.6, 0.2]))
    for agent, likelihood in enumerate((stays, moves)):
        everything = PRIOR * likelihood
        other_hare = np.array([0, everything[0] + everything[1], *everything[2:]])
        np.testing.assert_allclose(memory.belief[0, agent], everything / everything.sum(), rtol=1e-4)
        np.testing.assert_allclose(memory.belief[1, agent], other_hare / everything.sum(), rtol=1e-4)
        for row in (0, 1):
            posterior = everything / everything.sum()
            np.testing.assert_allclose(record["posterior"][row, agent], posterior, rtol=1e-4)
            by_type = [posterior[0] + posterior[1], posterior[2], posterior[3]]
            np.testing.assert_allclose(memory.pursued[row, agent], by_type, rtol=1e-4)
    np.testing.assert_allclose(record["belief"][0, 0], PRIOR, rtol=1e-5)
    # Σ_g b(g)·π(a | s, g): action 1 has 0.35, action 0 has 0.295.
    assert record["predicted"].tolist() == [[1, 1], [1, 1]]
    assert memory.complete.tolist() == [True, True], "a hare is still there"
    none_left = start._replace(there=jnp.array([False, False, True]))
    before = observed(hunt, (start, none_left), [[0, 0], [0, 0]])[1]
    assert before.complete.tolist() == [True, False]
    later = observed(hunt, (start, none_left), [[0, 0], [0, 0]], before)[1]
    assert not np.allclose(later.pursued[0], before.pursued[0])
    np.testing.assert_array_equal(later.pursued[1], before.pursued[1], err_msg="no hare is left to be pursued")
    assert later.complete.tolist() == [True, False]


def test_an_agent_that_reached_its_goal_starts_from_the_prior_again(hunt):
    """The second hunter catches the first hare; the second environment has already finished."""
    _, mac, start = hunt
    caught = start._replace(there=jnp.array([False, True, True]), caught=jnp.array([-1, 0], jnp.int32))
    before, memory, record = observed(hunt, (caught, caught), [[0, 1], [0, 1]], running=(True, False))
    np.testing.assert_allclose(memory.belief[0, 1], [0, 0.475, 0.475, 0.05], rtol=1e-5)
    assert not np.allclose(memory.belief[0, 0], [0, 0.475, 0.475, 0.05])
    assert memory.reached[0].tolist() == [-1, 0]
    assert record["reached"][0].tolist() == [-1, 0]
    for name in ("belief", "reached", "pursued"):
        np.testing.assert_array_equal(getattr(memory, name)[1], getattr(before, name)[1], err_msg=name)
    prior = np.array([0.475, 0.475, 0.05])
    after = mac.next_prior(memory)
    np.testing.assert_allclose(after[0, 1], 0.6 * prior + 0.4 * np.array([1, 0, 0]), rtol=1e-5)
    np.testing.assert_allclose(after[0, 0], 0.6 * prior + 0.4 * np.asarray(memory.pursued[0, 0]), rtol=1e-5)
    # A later step without a catch keeps the type that was reached.
    later = observed(hunt, (start, start), [[0, 0], [0, 0]], memory)[1]
    assert later.reached[0].tolist() == [-1, 0]


def test_an_agent_chooses_anew_when_it_reached_a_goal_that_stays_open(hunt):
    start = hunt[2]
    reached = start._replace(caught=jnp.array([-1, 0], jnp.int32))
    before, memory, _ = observed(hunt, (reached, reached), [[0, 0], [0, 0]])
    np.testing.assert_allclose(memory.belief[0, 1], before.belief[0, 1], rtol=1e-6)
    assert memory.reached[0].tolist() == [-1, 0]


def test_a_goal_without_a_place_is_given_up_with_a_probability_per_step():
    """As strategies: they never close, and an agent that reached one keeps to it."""
    strategies = hunt_with(goal_hazard=0.2)
    _, mac, start = strategies
    mac.models.goals.placed = mac.models.goals.chosen_anew = False
    reached = start._replace(caught=jnp.array([-1, 0], jnp.int32))
    _, memory, record = observed(strategies, (reached, reached), [[0, 1], [0, 1]])
    assert not np.allclose(record["posterior"], PRIOR, atol=0.01)
    np.testing.assert_allclose(memory.belief, 0.8 * record["posterior"] + 0.2 * PRIOR, rtol=1e-5)


def test_beliefs_that_are_switched_off():
    off = hunt_with(intra_belief=False, inter_belief=False)
    _, mac, start, *_ = off
    before, memory, _ = observed(off, (start, start), [[0, 1], [0, 1]])
    np.testing.assert_allclose(memory.belief, before.belief, rtol=1e-6)
    np.testing.assert_array_equal(mac.next_prior(memory._replace(reached=memory.reached + 2)), before.prior)


def test_later_actions_do_not_change_the_type_that_was_pursued_while_all_types_were_open(hunt):
    _, mac, start = hunt[:3]
    first = mac.init_memory(None, 2)._replace(complete=jnp.array([True, False]))
    _, memory, _ = observed(hunt, (start, start), [[0, 1], [0, 1]], first)
    assert not np.allclose(memory.pursued[0], first.pursued[0])
    np.testing.assert_array_equal(memory.pursued[1], first.pursued[1])
    assert memory.complete.tolist() == [True, False]


def test_one_step_of_the_search_by_hand(hunt):
    """A catch, a step, and a step at the time limit: reward scaled, discount 0 where no value follows."""
    env, _, start, *_ = hunt
    models = HopModels(env, EnvGoals(env), 4, True)
    planner = Planner(env, models, PlanningSettings(gamma=0.9, reward_scale=0.5, bootstrap_at_limit=False))
    policy = jnp.log(jnp.array([0.6, 0.1, 0.1, 0.1, 0.1]))
    models.co_player_logits = lambda model, obs, goal, avail: jnp.where(avail, 0.0, -1e9)
    models.policy_value = lambda agent, obs, others, avail: (
        jnp.where(avail, policy, -1e9), jnp.full(avail.shape[:-1], 3.0)
    )  # fmt: skip
    beside = start._replace(hunters=jnp.array([[0, 1], [2, 2]]))
    states = jax.tree.map(lambda *x: jnp.stack(x), beside, start, start)
    seen = jax.vmap(env._timestep)(states, jnp.zeros((3, 2)))
    node = Node(states, seen.obs, seen.avail_actions, jnp.zeros((3, 2), jnp.int32), jnp.array([0, 0, 29]))
    left = jnp.array([3, 3, 3])
    # The agent's own entry among the draws does not count: it goes left.
    drawn, seat = jnp.array([[0, 4], [0, 4], [0, 4]]), jnp.zeros(3, jnp.int32)
    expand = jax.jit(lambda node: planner.expand({"model": None, "agent": None}, KEY, left, drawn, node, seat))
    step, after = expand(node)
    played = jax.vmap(env.step)(states, jnp.array([[3, 4]] * 3), jax.random.split(KEY, 3))[0]
    np.testing.assert_array_equal(after.env_state.hunters, played.hunters)
    assert step.reward.tolist() == [0.5, 0.0, 0.0]
    np.testing.assert_allclose(step.discount, [0.0, 0.9, 0.0], rtol=1e-6)
    planner.settings = PlanningSettings(gamma=0.9, bootstrap_at_limit=True)
    endless = jax.jit(lambda node: planner.expand({"model": None, "agent": None}, KEY, left, drawn, node, seat))(node)
    np.testing.assert_allclose(endless[0].discount, [0.0, 0.9, 0.9], rtol=1e-6, err_msg="the limit is no end")
    np.testing.assert_allclose(step.value, 3.0)
    available = np.asarray(after.avail_actions[1, 0])
    weights = np.where(available, [0.6, 0.1, 0.1, 0.1, 0.1], 0.0)
    prior = 0.75 * weights / weights.sum() + 0.25 * available / available.sum()
    np.testing.assert_allclose(np.exp(step.prior_logits[1]), prior, rtol=1e-4, atol=1e-6)
    uniform = np.asarray(after.avail_actions[1, 1] / after.avail_actions[1, 1].sum())
    np.testing.assert_allclose(step.odds[1], [np.ones(5), np.cumsum(uniform)], rtol=1e-5)
    assert after.goals[0, 0] == models.none, "an agent that left pursues no goal"
    assert after.goals[1].tolist() == [0, 0]
    assert after.t.tolist() == [1, 1, 30]


def test_an_agent_whose_goal_closed_pursues_another_one_of_its_type_or_else_any_other(hunt):
    mac = hunt[1]
    planner = Planner(mac.env, mac.models, PlanningSettings())
    goals = jnp.zeros((64, 1), jnp.int32)

    def resampled(*is_open):
        rows = jnp.broadcast_to(jnp.array(is_open, bool), (64, 1, 4))
        return set(np.asarray(planner.resample(goals, rows, KEY)).ravel().tolist())

    assert resampled(1, 1, 1, 1) == {0}
    assert resampled(0, 1, 1, 1) == {1}
    assert resampled(0, 0, 1, 1) == {2}
    assert resampled(0, 0, 0, 1) == {3}


# --- episodes of a focal agent


def test_the_focal_agent_sits_in_every_seat_and_the_others_follow_it():
    """Three seats, one episode each; observation 10·episode + seat."""
    obs = (10 * np.arange(3)[:, None] + np.arange(3))[:, None, :, None] * np.ones((3, 2, 3, 1))
    batch = episodes(obs[..., 0], np.ones((3, 2)), obs=obs, agent_idx=np.arange(3, dtype=np.int8)[:, None])
    found = refine(batch, 3)
    np.testing.assert_array_equal(found.obs[0, 0, :, 0], [0, 11, 22])
    np.testing.assert_array_equal(found.reward[0, 0], [0, 11, 22])
    np.testing.assert_array_equal(found.others_obs[0, 0, :, :, 0], [[1, 2], [12, 10], [20, 21]])
    together = all_agents(batch, 3)
    np.testing.assert_array_equal(together.obs[1, 0, :, 0], [10, 11, 12])
    np.testing.assert_array_equal(together.others_obs[1, 0, :, :, 0], [[11, 12], [12, 10], [10, 11]])


@pytest.mark.parametrize("exclusive_goals", [True, False])
def test_an_action_that_reached_a_goal_is_unlikely_for_every_other_goal(exclusive_goals):
    """With two goals the other one is certain; the action has probability 0.75 there. The second agent reached none."""
    batch = episodes(np.zeros((1, 2, 2)), [[1, 0]], reached=[[[1, -1], [-1, -1]]])
    models = SimpleNamespace(n_goals=2, goal=lambda obs, goal: goal)
    models.co_player_logits = lambda model, obs, goal, avail: jnp.log(
        jnp.where(goal[..., None] == 0, jnp.array([3.0, 1.0]), jnp.array([1.0, 99.0]))
    )
    stub = SimpleNamespace(mac=SimpleNamespace(models=models, env=MultiAgentEnv()), exclusive_goals=exclusive_goals)
    found = jax.jit(lambda: HopLearner.exclusive(stub, None, batch, jnp.ones((1, 1, 2)), KEY))()
    np.testing.assert_allclose(found, -np.log(1 - 0.999 * 0.75) if exclusive_goals else 0.0, rtol=1e-4)


# --- optimisation


def test_every_network_and_every_seat_is_clipped_by_itself():
    shapes = jax.eval_shape(lambda: agents["idv_rnn"](1, 1, 2, AgentSettings(rnn_hidden_dim=1), KEY))
    scale = np.array([0.01, 100.0], np.float32)
    seats = jax.tree.map(lambda x: np.ones(x.shape, np.float32) * scale.reshape(2, *(1,) * (len(x.shape) - 1)), shapes)
    grads = {"small": jnp.array([0.3, 0.4]), "large": jnp.array([3.0, 4.0]), "seats": seats}
    clipped, _ = jax.jit(clip_each(1.0).update)(grads, optax.EmptyState())
    np.testing.assert_allclose(clipped["small"], [0.3, 0.4])
    np.testing.assert_allclose(clipped["large"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(optax.global_norm(jax.tree.map(lambda x: x[1], clipped["seats"])), 1.0, rtol=1e-5)
    np.testing.assert_allclose(clipped["seats"].seats.fc1.weight[0], 0.01)


@pytest.mark.parametrize(("updates", "copied"), [(9, False), (10, True), (11, False), (20, True)])
def test_target_networks_are_copied_after_every_interval_of_updates(updates, copied):
    stub = SimpleNamespace(settings=TargetSettings(target_update_interval=10))
    stub.target_of = lambda params: {"agent": params["agent"]}
    params, frozen = {"agent": jnp.array(1.0), "cvae": jnp.array(2.0)}, {"agent": jnp.array(0.0), "vae": 7}
    target = Learner.refresh_target(stub, LearnerState(params, frozen, None, jnp.int32(updates))).target
    assert target["agent"] == float(copied)
    assert target.keys() == {"agent", "vae"}
    assert target["vae"] == 7

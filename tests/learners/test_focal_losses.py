"""Losses of one agent with frozen partners against plain loops, and PPO's chunks against whole episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.chunks import chop
from omg.components.episode_buffer import all_agents, refine, time_first
from omg.controllers import BasicMAC
from omg.envs import make
from omg.learners import OMGLearner, PPOLearner, QLearner, QLearner4AM
from omg.learners.td import steps_of
from omg.modules.am.omg_am import Chosen
from omg.modules.vae import VAE, Gaussian, kl
from tests.conftest import play

KEY = jax.random.key(0)
CONFIG = {
    "rnn_hidden_dim": 4, "gamma": 0.9, "vae_latent_dim": 3, "vae_hidden_dim": 4, "cond_fc_dim": 3, "cond_rnn_dim": 5,
    "am_hidden_dim": 4, "liam_embed_dim": 3, "H": 3, "t_max": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def batch(foraging):
    """Three episodes; and each of them once per seat, so that column k of a row is agent k of the same episode."""
    episodes = play(foraging, 3, seed=3)
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x]), episodes)
    return episodes, twice.with_fields(agent_idx=jnp.repeat(jnp.arange(2, dtype=jnp.int8), 3)[:, None])


def steps_taken(episodes):
    """The indices (episode, time, agent) of all steps."""
    lengths = np.asarray(episodes.filled).sum(1).astype(int)
    return [(b, t, i) for b, length in enumerate(lengths) for t in range(length) for i in range(2)]


def test_without_an_agent_model_it_is_independent_q_learning(foraging, batch):
    episodes, both = batch
    team = QLearner(foraging.spec, BasicMAC(foraging.spec, CONFIG), CONFIG)
    focal = QLearner4AM(foraging.spec, BasicMAC(foraging.spec, CONFIG), CONFIG, focal=True)
    params, target = jax.jit(team.init)(KEY).params, jax.jit(team.init)(jax.random.key(1)).target
    expected = team.loss(params, target, episodes, jnp.int32(0), KEY)[0]
    np.testing.assert_allclose(focal.loss(params, target, both, jnp.int32(0), KEY)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("am_model", ["base_am", "liam_am"])
def test_prediction_losses(am_model, foraging, batch):
    """Cross-entropy of the other agent's actions and, for LIAM, squared error of its observations, step by step."""
    focal = all_agents(batch[0], 2)
    mac = BasicMAC(foraging.spec, CONFIG | {"am_model": am_model})
    params = mac.am.init(KEY)
    seen = mac.seen(focal)
    inferred = mac.infer_all(params, seen, focal)
    loss, metrics = mac.am.loss(params, seen, focal, inferred, None, KEY)
    predicted = np.asarray(mac.am.predicted_actions(params, inferred))
    actions, obs = np.asarray(batch[0].actions), np.asarray(batch[0].obs)
    if am_model == "liam_am":
        decoded = np.asarray(params["liam_am"].decoder(inferred.embedding))[..., : foraging.spec.obs_size]
    cross_entropy, right, squared = [], [], []
    for b, t, i in steps_taken(batch[0]):
        action = actions[b, t, 1 - i]
        cross_entropy.append(-np.log(predicted[t, b, i, 0, action]))
        right.append(predicted[t, b, i, 0].argmax() == action)
        if am_model == "liam_am":
            squared.append(np.mean((decoded[t, b, i] - obs[b, t, 1 - i]) ** 2))
    expected = np.mean(cross_entropy) + (np.mean(squared) if squared else 0.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["action_accuracy"], np.mean(right), rtol=1e-6)


def omg(spec, **config):
    """An OMG learner, its state, and a second state with other weights."""
    config = CONFIG | {"am_model": "omg_am"} | config
    vae = VAE(spec.obs_size, 4, 3, jax.random.key(7))
    learner = OMGLearner(spec, BasicMAC(spec, config), config, focal=True, artifacts={"vae": vae})
    return learner, jax.jit(learner.init)(KEY), jax.jit(learner.init)(jax.random.key(1))


def test_the_loss_of_the_subgoal_model(foraging, batch):
    """Reconstruction from a sampled ĝ, and KL to the distribution of the chosen state, over steps taken only."""
    learner, state, _ = omg(foraging.spec)
    focal, am, vae = all_agents(batch[0], 2), learner.mac.am, state.target["vae"]
    seen = learner.mac.seen(focal)
    inferred = learner.mac.infer_all(state.params, seen, focal)
    condition = learner.condition(state.params, state.target, seen, focal, inferred, jnp.int32(0), KEY)
    loss, metrics = am.loss(state.params, seen, focal, inferred, condition.chosen, KEY)
    posterior = Gaussian(inferred.embedding, inferred.log_var)
    decoded = np.asarray(state.params["cvae"].decode(posterior.sample(KEY), inferred.rest))
    standard, divergence = np.asarray(vae.standard(seen.s)), np.asarray(kl(posterior, condition.chosen.subgoal))
    at = tuple(np.transpose([(t, b, i) for b, t, i in steps_taken(batch[0])]))
    error, divergence = ((decoded - standard) ** 2).sum(-1)[at].mean(), divergence[at].mean()
    np.testing.assert_allclose(metrics["recons_loss"], error, rtol=1e-4)
    np.testing.assert_allclose(metrics["kl_loss"], divergence, rtol=1e-4)
    np.testing.assert_allclose(loss, error + divergence, rtol=1e-4)


def test_the_policy_learns_on_chosen_subgoals_at_first_and_on_inferred_ones_at_last(foraging, batch):
    learner, state, _ = omg(foraging.spec)
    focal = all_agents(batch[0], 2)
    seen = learner.mac.seen(focal)
    inferred = learner.mac.infer_all(state.params, seen, focal)
    for t_env, expected in ((0, "chosen"), (10_000, "inferred")):
        condition = learner.condition(state.params, state.target, seen, focal, inferred, jnp.int32(t_env), KEY)
        source = condition.chosen.subgoal.mu if expected == "chosen" else inferred.embedding
        filled = np.asarray(time_first(focal.filled)) > 0
        np.testing.assert_array_equal(np.asarray(condition.embedding)[filled], np.asarray(source)[filled])
    assert isinstance(condition.chosen, Chosen)


@pytest.mark.parametrize("target_subgoal", ["next", "same"])
def test_the_next_state_is_valued_with_the_subgoal_that_the_setting_names(foraging, batch, target_subgoal):
    learner, state, other = omg(foraging.spec, target_subgoal=target_subgoal, double_q=False)
    focal = refine(batch[1], 2)
    seen = learner.mac.seen(focal)
    steps = steps_of(focal, learner.settings, foraging.spec.episode_limit, learner.shared_reward)
    goals = jax.random.normal(KEY, (*seen.own.shape[:-1], 3))
    q_taken, q_next = learner.values(state.params, other.target, seen, steps, goals, goals)
    target = other.target["agent"]
    hidden = learner.mac.unroll_on(target, seen, goals).hidden
    for t in (0, 3):
        goal = goals[t + 1] if target_subgoal == "next" else goals[t]
        q = target.step(jnp.concatenate([seen.own[t + 1], goal], -1), hidden[t])[0]
        best = jnp.where(focal.avail_actions[:, t + 1], q, -jnp.inf).max(-1)
        goes_on = np.asarray(focal.avail_actions[:, t + 1]).any(-1)
        assert goes_on.any()
        np.testing.assert_allclose(np.asarray(q_next[t])[goes_on], np.asarray(best)[goes_on], rtol=1e-4, atol=1e-6)
    online = learner.mac.unroll_on(state.params["agent"], seen, goals).outputs
    expected = jnp.take_along_axis(online[:-1], steps.actions[..., None], -1)[..., 0]
    np.testing.assert_allclose(q_taken, expected, rtol=1e-5)


@pytest.mark.parametrize("target_subgoal", ["next", "same"])
@pytest.mark.slow
def test_two_networks_in_one_scan_equal_two_scans(foraging, batch, target_subgoal, monkeypatch):
    """As on a GPU: the loss and every gradient are the same, and the target network has none."""
    learner, state, other = omg(foraging.spec, target_subgoal=target_subgoal)

    def loss(params, target):
        return learner.loss(params, target, batch[1], jnp.int32(0), KEY)[0]

    results = []
    for few in (False, True):
        for module in ("omg.components.layers", "omg.controllers.basic_controller"):
            monkeypatch.setattr(f"{module}.few_launches", lambda few=few: few)
        both = jax.jit(lambda params, target: jax.value_and_grad(loss, argnums=(0, 1))(params, target))
        results.append(both(state.params, other.target))
    for (path, apart), together in zip(jax.tree.leaves_with_path(results[0]), jax.tree.leaves(results[1]), strict=True):
        np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-6, err_msg=str(path))
    for gradient in jax.tree.leaves(results[1][1][1]["agent"]):
        np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_chunks_start_from_the_recurrent_state_while_acting(foraging, batch, cell):
    """Before any update, chunks of 4 of 12 steps have probability ratios of 1 and the values of whole episodes."""
    config = CONFIG | {"rnn_cell": cell, "seq_len": 5, "agent_output_type": "pi_logits"}
    learner = PPOLearner(foraging.spec, BasicMAC(foraging.spec, config), config)
    state = jax.jit(learner.init)(KEY)
    focal, params = all_agents(batch[0], 2), state.params
    rollout, metrics = jax.jit(learner.prepare)(params, state.target, focal, jnp.int32(0), KEY)
    chunks, starts = chop(5, 1, rollout.along, rollout.memory)
    assert chunks.inputs.shape[:2] == (4, 3 * 3), "as even as possible"
    assert chunks.acted.sum() == focal.filled.sum()
    _, found = learner.chunk_loss(params, chunks, starts, jnp.int32(0))
    assert found["clipped"] == 0
    mean = float((chunks.advantage * chunks.acted).sum() / chunks.acted.sum())
    np.testing.assert_allclose(found["policy_loss"], -mean, atol=1e-5)
    values = params["critic"].unroll(chunks.inputs, starts.critic)[0][..., 0]
    value_mean = (values * chunks.acted).sum() / chunks.acted.sum()
    np.testing.assert_allclose(value_mean, metrics["value_mean"], rtol=1e-4, atol=1e-6)
    assert rollout.chosen is None


@pytest.fixture(scope="module")
def hunters():
    """Episodes of up to 30 steps from which hunters leave at different times."""
    env = make("stag_hunt", grid_size=4)
    config = CONFIG | {"agent_output_type": "pi_logits", "policy_model": "idv_rnn", "seq_len": 20}
    learner = PPOLearner(env.spec, BasicMAC(env.spec, config), config)
    episodes = play(env, 6, seed=1)
    assert len({int(n) for n in np.asarray(episodes.alive[:, :-1].sum((1, 2)))}) > 1
    return env, learner, jax.jit(learner.init)(KEY), episodes


def test_chunks_equal_the_whole_unroll(hunters):
    """8 chunks of 4 steps from episodes of 30, with one network per seat: logits and values step by step."""
    env, learner, state, episodes = hunters
    focal = all_agents(episodes, env.spec.n_agents)
    rollout, _ = jax.jit(learner.prepare)(state.params, state.target, focal, jnp.int32(0), KEY)
    chunks, starts = chop(4, 1, rollout.along, rollout.memory)
    seen = learner.mac.seen(focal)
    for name, memory in starts._asdict().items():
        whole = learner.mac.unroll_on(state.params[name], seen, jnp.zeros((*seen.own.shape[:-1], 0))).outputs[:-1]
        pieces = state.params[name].unroll(chunks.inputs, memory)[0]
        assert pieces.shape[:2] == (4, 8 * 6)
        joined = jnp.concatenate(jnp.split(pieces, 8, axis=1), 0)[: env.spec.episode_limit]
        np.testing.assert_allclose(joined, whole, rtol=1e-5, atol=1e-6)


def test_the_rewards_of_one_agent_change_no_other_agents_network(hunters):
    """A whole update with one network per seat: only the networks of the agent with other rewards differ."""
    _, learner, state, episodes = hunters
    richer = episodes.with_fields(reward=episodes["reward"].at[:, :, 1].add(1.0))
    step = jax.jit(lambda batch: learner.train(state, batch, jnp.int32(0), KEY)[0].params)
    before, after = step(episodes), step(richer)
    for name in ("agent", "critic"):
        moved = [
            np.asarray(abs(a - b)).reshape(4, -1).max(1)
            for a, b in zip(jax.tree.leaves(before[name].seats), jax.tree.leaves(after[name].seats), strict=True)
        ]
        each = np.max(moved, 0)
        assert each[1] > 1e-5, "the agent with more reward learns something else"
        np.testing.assert_allclose(each[[0, 2, 3]], 0, atol=1e-7, err_msg="all others learn the same")

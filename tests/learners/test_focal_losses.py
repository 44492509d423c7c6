"""Losses of one agent among others against plain loops, and PPO's chunks against whole episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import EpisodeBatch
from omg.components.focal_batch import everybody, refine
from omg.controllers import BasicMAC, FocalMAC
from omg.envs import make
from omg.learners import OMGLearner, PPOLearner, QLearner, QLearner4AM
from omg.modules.am.base import time_first
from omg.modules.am.omg_am import Chosen
from omg.modules.vae import VAE, Gaussian, kl
from tests.conftest import play

KEY = jax.random.key(0)
CONFIG = {
    "rnn_hidden_dim": 4, "gamma": 0.9, "vae_latent_dim": 3, "vae_hidden_dim": 4, "cond_fc_dim": 3, "cond_rnn_dim": 5,
    "am_hidden_dim": 4, "liam_embed_dim": 3, "H": 3, "t_max": 100, "mac": "multi_module_mac",
}  # fmt: skip


@pytest.fixture(scope="module")
def batch(foraging):
    """Three episodes, each once for either seat: slot k of a row is agent k of the same episode."""
    episodes = play(foraging, 3, seed=3)
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x]), episodes)
    seats = jnp.repeat(jnp.arange(2, dtype=jnp.int8), 3)[:, None]
    return episodes, EpisodeBatch({**twice.data, "agent_idx": seats}, twice.scales)


def test_without_a_model_it_is_independent_q_learning(foraging, batch):
    episodes, both = batch
    plain = QLearner(foraging.spec, BasicMAC(foraging.spec, CONFIG), CONFIG)
    focal = QLearner4AM(foraging.spec, FocalMAC(foraging.spec, CONFIG), CONFIG)
    params, target = plain.init(KEY).params, plain.init(jax.random.key(1)).target
    wanted = plain.loss(params, target, episodes, jnp.int32(0), KEY)[0]
    np.testing.assert_allclose(focal.loss(params, target, both, jnp.int32(0), KEY)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("am_model", ["base_am", "liam_am"])
def test_prediction_losses(am_model, foraging, batch):
    """Cross-entropy of what the other did (and, for LIAM, squared error of what it saw), step by step."""
    focal = everybody(batch[0], 2)
    mac = FocalMAC(foraging.spec, CONFIG | {"am_model": am_model})
    params = mac.am.init(KEY)
    seen = mac.seen(focal)
    inferred = mac.infer_all(params, seen, focal)
    loss, metrics = mac.am.loss(params, seen, focal, inferred, None, KEY)
    chances = np.asarray(mac.am.predicted_actions(params, inferred))
    surprise, right, squared = [], [], []
    for b in range(3):
        for t in range(int(batch[0].filled[b].sum())):
            for i in range(2):
                did = int(batch[0].actions[b, t, 1 - i])
                surprise.append(-np.log(chances[t, b, i, 0, did]))
                right.append(chances[t, b, i, 0].argmax() == did)
                if am_model == "liam_am":
                    decoded = params["liam_am"].decoder(inferred.embedding[t, b, i])[: foraging.spec.obs_size]
                    squared.append(np.mean((decoded - batch[0].obs[b, t, 1 - i]) ** 2))
    expected = np.mean(surprise) + (np.mean(squared) if squared else 0.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["action_accuracy"], np.mean(right), rtol=1e-6)


def omg(spec, **config):
    config = CONFIG | {"am_model": "omg_am", "vae": VAE(spec.obs_size, 4, 3, jax.random.key(7))} | config
    learner = OMGLearner(spec, FocalMAC(spec, config), config)
    return learner, learner.init(KEY), learner.init(jax.random.key(1))


def test_the_subgoal_models_loss(foraging, batch):
    """Reconstruction from a drawn ĝ, and KL to the distribution of the chosen state, over real steps only."""
    learner, state, _ = omg(foraging.spec)
    focal, am, vae = everybody(batch[0], 2), learner.mac.am, state.target["vae"]
    seen = learner.mac.seen(focal)
    inferred = learner.mac.infer_all(state.params, seen, focal)
    told = learner.tell(state.params, state.target, seen, focal, inferred, jnp.int32(0), KEY)
    loss, metrics = am.loss(state.params, seen, focal, inferred, told.chosen, KEY)
    drawn = Gaussian(inferred.embedding, inferred.log_var).sample(KEY)
    decoded = np.asarray(state.params["cvae"].decode(drawn, inferred.rest))
    errors, divergences = [], []
    for b in range(3):
        for t in range(int(batch[0].filled[b].sum())):
            for i in range(2):
                errors.append(((decoded[t, b, i] - np.asarray(vae.standard(seen.s[t, b, i]))) ** 2).sum())
                q = Gaussian(inferred.embedding[t, b, i], inferred.log_var[t, b, i])
                p = Gaussian(told.chosen.subgoal.mu[t, b, i], told.chosen.subgoal.log_var[t, b, i])
                divergences.append(float(kl(q, p)))
    np.testing.assert_allclose(metrics["recons_loss"], np.mean(errors), rtol=1e-4)
    np.testing.assert_allclose(metrics["kl_loss"], np.mean(divergences), rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(errors) + np.mean(divergences), rtol=1e-4)


def test_at_first_the_policy_learns_on_the_chosen_and_at_last_on_the_inferred(foraging, batch):
    learner, state, _ = omg(foraging.spec)
    focal = everybody(batch[0], 2)
    seen = learner.mac.seen(focal)
    inferred = learner.mac.infer_all(state.params, seen, focal)
    for t_env, wanted in ((0, "chosen"), (10_000, "inferred")):
        told = learner.tell(state.params, state.target, seen, focal, inferred, jnp.int32(t_env), KEY)
        source = told.chosen.subgoal.mu if wanted == "chosen" else inferred.embedding
        real = np.asarray(time_first(focal.filled)) > 0
        np.testing.assert_array_equal(np.asarray(told.embedding)[real], np.asarray(source)[real])
    assert isinstance(told.chosen, Chosen)


@pytest.mark.parametrize("target_subgoal", ["next", "same"])
def test_what_comes_next_is_judged_with_the_subgoal_asked_for(foraging, batch, target_subgoal):
    learner, state, other = omg(foraging.spec, target_subgoal=target_subgoal, double_q=False)
    focal = refine(batch[1], 2)
    seen = learner.mac.seen(focal)
    told = jax.random.normal(KEY, (*seen.own.shape[:-1], 3))
    taken, ahead = learner.values(state.params, other.target, seen, focal, told)
    older = other.target["agent"]
    hidden = learner.mac.unroll_on(older, seen, told).hidden
    for t in (0, 3):
        goal = told[t + 1] if target_subgoal == "next" else told[t]
        q = older.step(jnp.concatenate([seen.own[t + 1], goal], -1), hidden[t])[0]
        best = jnp.where(focal.avail_actions[:, t + 1], q, -jnp.inf).max(-1)
        there = np.asarray(focal.avail_actions[:, t + 1]).any(-1)
        assert there.any()
        np.testing.assert_allclose(np.asarray(ahead[t])[there], np.asarray(best)[there], rtol=1e-4, atol=1e-6)
    assert taken.shape == ahead.shape


@pytest.mark.parametrize("target_subgoal", ["next", "same"])
def test_two_networks_in_one_scan_are_the_two_by_themselves(foraging, batch, target_subgoal, monkeypatch):
    """What a GPU does: the loss and every gradient are the same, and the older network gets none."""
    learner, state, other = omg(foraging.spec, target_subgoal=target_subgoal)

    def loss(params, target):
        return learner.loss(params, target, batch[1], jnp.int32(0), KEY)[0]

    results = []
    for few in (False, True):
        monkeypatch.setattr("omg.utils.device.few_launches", lambda few=few: few)
        both = jax.jit(lambda params, target: jax.value_and_grad(loss, argnums=(0, 1))(params, target))
        results.append(both(state.params, other.target))
    for (path, apart), together in zip(jax.tree.leaves_with_path(results[0]), jax.tree.leaves(results[1]), strict=True):
        np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-6, err_msg=str(path))
    for gradient in jax.tree.leaves(results[1][1][1]["agent"]):
        np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_chunks_start_from_the_memory_the_network_had_there(foraging, batch, cell):
    """Cut into chunks of 5 of 12 steps, nothing is different yet: every ratio is 1 and the values are the same."""
    config = CONFIG | {"mac": "am_mac", "rnn_cell": cell, "seq_len": 5, "agent_output_type": "pi_logits"}
    learner = PPOLearner(foraging.spec, FocalMAC(foraging.spec, config), config)
    params = learner.init(KEY).params
    focal = everybody(batch[0], 2)
    chunks, told, metrics = jax.jit(learner.prepare)(params, {}, focal, jnp.int32(0), KEY)
    assert chunks.inputs.shape[:2] == (5, 3 * 3)
    assert chunks.mask.sum() == focal.filled.sum()
    _, found = learner.policy_loss(params, chunks)
    assert found["clipped"] == 0
    mean = float((chunks.advantage * chunks.mask).sum() / chunks.mask.sum())
    np.testing.assert_allclose(found["policy_loss"], -mean, atol=1e-5)
    again = params["critic"].unroll(chunks.inputs, chunks.critic_memory)[0][..., 0]
    whole = (again * chunks.mask).sum() / chunks.mask.sum()
    np.testing.assert_allclose(whole, metrics["value_mean"], rtol=1e-4, atol=1e-6)
    assert told.chosen is None


@pytest.fixture(scope="module")
def hunters():
    """Episodes of up to 30 steps from which hunters leave at different times."""
    world = make("stag_hunt", grid_size=4)
    config = CONFIG | {"mac": "am_mac", "agent_output_type": "pi_logits", "policy_model": "idv_rnn", "seq_len": 20}
    learner = PPOLearner(world.spec, FocalMAC(world.spec, config), config)
    episodes = play(world, 6, seed=1)
    assert len({int(n) for n in np.asarray(episodes.alive[:, :-1].sum((1, 2)))}) > 1
    return world, learner, learner.init(KEY), episodes


def test_chunks_of_20_give_what_the_whole_unroll_gives(hunters):
    """Step by step, with a network of its own for every agent: logits and values, from the stored memory on."""
    world, learner, state, episodes = hunters
    n, limit = world.spec.n_agents, world.spec.episode_limit
    focal = everybody(episodes, n)
    chunks, told, _ = jax.jit(learner.prepare)(state.params, {}, focal, jnp.int32(0), KEY)
    seen = learner.mac.seen(focal)
    for name, memory in (("agent", chunks.agent_memory), ("critic", chunks.critic_memory)):
        whole = learner.mac.unroll_on(state.params[name], seen, told.embedding).outputs[:-1]
        parts = state.params[name].unroll(chunks.inputs, memory)[0]
        assert parts.shape[:2] == (20, 2 * 6)
        again = jnp.concatenate([parts[:, :6], parts[:, 6:]], 0)[:limit]
        np.testing.assert_allclose(again, whole, rtol=1e-5, atol=1e-6)


def test_what_one_earns_changes_nothing_in_anothers_network(hunters):
    """A whole update: only the networks of the agent with other rewards differ."""
    _, learner, state, episodes = hunters
    richer = EpisodeBatch({**episodes.data, "reward": episodes.data["reward"].at[:, :, 1].add(1.0)}, episodes.scales)
    step = jax.jit(lambda batch: learner.train(state, batch, jnp.int32(0), jnp.int32(0), jnp.int32(0), KEY)[0].params)
    plain, other = step(episodes), step(richer)
    for name in ("agent", "critic"):
        moved = [
            np.asarray(abs(a - b)).reshape(4, -1).max(1)
            for a, b in zip(jax.tree.leaves(plain[name].seats), jax.tree.leaves(other[name].seats), strict=True)
        ]
        each = np.max(moved, 0)
        assert each[1] > 1e-5, "who earns more learns something else"
        np.testing.assert_allclose(each[[0, 2, 3]], 0, atol=1e-7, err_msg="and nobody else does")

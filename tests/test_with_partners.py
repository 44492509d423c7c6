"""One agent with frozen partners: which opponents are sampled, which seats they take, what is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.build import StandIns, build
from omg.components.chunks import chop
from omg.components.episode_buffer import EpisodeBatch, ReplayBuffer, all_agents, make_scheme, refine
from omg.controllers import BasicMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.learners.ppo_learner import PPOLearner
from omg.learners.q_learner import QLearner
from omg.modules.vae import VAE
from omg.opponents.pool import untrained
from omg.runners import Opponents, PolicyGroup, TeamRunner, focal_scheme
from omg.utils.settings import UserError
from tests.conftest import play
from tests.helpers import configuration, or_slow, train

SMALL = {"rnn_hidden_dim": 4, "test_nepisode": 4, "batch_size_run": 2, "length_buckets": 1}
REPLAY = {"batch_size": 2, "buffer_size": 16, "updates_per_iteration": 1}
SMALL_OMG = {"vae_latent_dim": 3, "vae_hidden_dim": 4, "cond_fc_dim": 3, "cond_rnn_dim": 5, "H": 3}
SMALL_MODEL = {
    "iql_am": {"am_hidden_dim": 4}, "iql_liam": {"am_hidden_dim": 4}, "iql_omg": SMALL_OMG, "ppo_omg": SMALL_OMG,
}  # fmt: skip
BOARD = {"env_args__grid_size": 5, "env_args__food": 1, "env_args__episode_limit": 12}
NETWORK = {"rnn_hidden_dim": 4}


def stand_ins(env):
    """Five opponents of two architectures, and a VAE, all untrained."""
    shared = untrained(env.spec, NETWORK, 3)[0]
    individual = untrained(env.spec, NETWORK | {"policy_model": "idv_rnn"}, 2)[0]._replace(ids=(3, 4))
    return StandIns([shared, individual], {"vae": VAE(env.spec.obs_size, 4, 3, jax.random.key(5))})


def focal_experiment(config, env, **updates):
    """Among the stand-ins on the two-step game, the smallest environment with more than one step."""
    small = SMALL | SMALL_MODEL.get(config, {}) | ({} if config.startswith("p") else REPLAY)
    pool = {"pool": "x"} if config in ("iql", "ppo", "pqn") else {}
    return build(configuration(config, "two_step", **(small | pool | updates)), stand_ins(env))


def test_schedules_count_the_steps_of_all_seats(two_step):
    """`t_max` counts the steps of one seat, the compiled counter those of both."""
    experiment = focal_experiment("iql", two_step, t_max=100, epsilon_anneal_time=0.5)
    assert experiment.learner.settings.t_max == experiment.settings.t_max == 200
    assert experiment.mac.selector.settings.duration == 100


@pytest.mark.parametrize("config", or_slow("iql_omg", slow=["iql", "ppo_omg", "iql_am", "iql_liam", "pqn"]))
def test_the_focal_agent_learns_and_the_opponents_parameters_stay_identical(config, two_step):
    experiment = focal_experiment(config, two_step)
    before = jax.device_get((experiment.loop.init().learner, experiment.loop.runner.policies))
    state, totals = experiment.loop.run(experiment.loop.init(), 0, 4)
    after = jax.device_get((state.learner, experiment.loop.runner.policies))
    assert int(totals.updates) > 0
    assert all(np.isfinite(value) for value in jax.tree.leaves(totals.metrics))
    for a, b in zip(jax.tree.leaves(before[1]), jax.tree.leaves(after[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    for name, network in after[0].params.items():
        changed = [
            (a != b).any()
            for a, b in zip(jax.tree.leaves(before[0].params[name]), jax.tree.leaves(network), strict=True)
        ]
        assert any(changed), name
    if "vae" in after[0].target:
        for a, b in zip(jax.tree.leaves(before[0].target["vae"]), jax.tree.leaves(after[0].target["vae"]), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def three_foragers():
    return make("foraging", players=3, grid_size=5, food=1, episode_limit=12)


GROUP = BOARD | {"env_args__players": 3, "multi_algs": True}


@pytest.mark.parametrize("config", or_slow("iql_am", slow=["qmix", "pqn_vdn", "ppo"]))
def test_a_group_learns_together_among_frozen_partners(config, three_foragers):
    """Two of three seats: every episode has two columns, and a mixer mixes two values."""
    small = SMALL | SMALL_MODEL.get(config, {}) | ({} if config.startswith("p") else REPLAY)
    partners = StandIns([untrained(three_foragers.spec, NETWORK, 2)[0]], {})
    experiment = build(configuration(f"1any2{config}", "foraging", **small, **GROUP), partners)
    assert experiment.mac.group == (0, 1)
    before = jax.device_get(experiment.loop.init().learner.params)
    state, totals = experiment.loop.run(experiment.loop.init(), 0, 3)
    assert int(totals.updates) > 0
    assert all(np.isfinite(value) for value in jax.tree.leaves(totals.metrics))
    for name, network in state.learner.params.items():
        leaves = zip(jax.tree.leaves(before[name]), jax.tree.leaves(network), strict=True)
        assert not jax.tree.leaves(network) or any((a != b).any() for a, b in leaves), name
    assert ("mixer" in state.learner.params) == (config in ("qmix", "pqn_vdn"))
    if config == "qmix":
        assert state.learner.params["mixer"].n_agents == 2
        assert "mixer" in state.learner.target
        assert "mixer" not in experiment.learner.acting(state.learner)
    batch, _ = experiment.loop.runner.run(
        experiment.learner.acting(state.learner), jnp.int32(0), jax.random.key(0), True
    )
    seen = experiment.mac.seen(refine(batch, 3, (0, 1)))
    assert seen.own[0, 0, :, -3:].argmax(-1).tolist() == [0, 1, 1, 2, 2, 0], "every column has the id of its seat"


def test_one_network_per_seat_learns_in_the_focal_agents_seat_only(three_foragers):
    partners = StandIns([untrained(three_foragers.spec, NETWORK, 2)[0]], {})
    own = {"policy_model": "idv_rnn", **SMALL, **REPLAY, **GROUP}
    assert build(configuration("1any2iql", "foraging", **own), partners).mac.group == (0,)
    with pytest.raises(UserError, match="shares one network"):
        build(configuration("1any2vdn", "foraging", **own), partners)
    with pytest.raises(UserError, match="not for a group that learns together"):
        build(configuration("1any2ppo", "foraging", carry_memory=True, **SMALL, **GROUP), partners)


def team_runner(env, policy_groups, envs, **config):
    focal = BasicMAC(env.spec, NETWORK | config)
    opponents = (Opponents(tuple(range(1, env.spec.n_agents)), tuple(policy_groups)),)
    scheme, groups = make_scheme(env.spec)
    return focal, TeamRunner(env, focal, (0,), opponents, scheme, groups, envs)


def test_every_member_is_sampled_equally_often(two_step):
    """Architecture groups of different sizes: each member has the same share of the environments."""
    networks = untrained(two_step.spec, NETWORK, 3)[0]
    policies = [lambda obs, avail, seat, key, a=a: jnp.int32(a) for a in (0, 1)]
    groups = [networks, PolicyGroup(ScriptedMAC(two_step.spec, *policies), jnp.arange(2), (3, 4))]
    focal, runner = team_runner(two_step, groups, envs=2)
    params = focal.init_params(jax.random.key(0))
    sample = jax.jit(lambda key, i: runner.run(params, jnp.int32(0), key, False, number=i)[1].members)
    members = np.concatenate([np.asarray(sample(jax.random.key(i), i))[:, 0] for i in range(1500)])
    shares = np.bincount(members, minlength=5) / len(members)
    # Two different members share each of 1500 collections: the standard error of a share is about 0.008.
    np.testing.assert_allclose(shares, 0.2, atol=0.03)


def always(spec, *actions):
    """Scripted partners that always take the same action."""
    policies = [lambda obs, avail, seat, key, a=a: jnp.int32(a) for a in actions]
    return PolicyGroup(ScriptedMAC(spec, *policies), jnp.arange(len(actions)), tuple(actions))


def test_best_responses_to_several_partners_in_one_program():
    """The climbing game: the best replies to an action are the best of its row and of its column."""
    args = configuration("iql", "climbing")["env_args"]
    env, payoff = make("matrix_game", **args), np.array(args["payoff"])
    updates = {"t_max": 3000, "one_partner_each": True, "seeds": 3, "epsilon_finish": 0.5, "lr": 0.01}
    small = SMALL | {"batch_size_run": 8, "batch_size": 8, "buffer_size": 64, "updates_per_iteration": 2, "pool": "x"}
    partners = StandIns([always(env.spec, 0, 2), always(env.spec, 1)], {})
    experiment = build(configuration("iql", "climbing", **(small | updates)), partners)
    state, _ = train(experiment)
    _, stats = experiment.loop.test(state, 0, 4)
    np.testing.assert_array_equal(stats.members[:, :, 0], [[0] * 4, [1] * 4, [2] * 4])
    best = (payoff.max(0) + payoff.max(1)) / 2
    np.testing.assert_array_equal(stats.focal_returns.mean(1), best)


def test_only_the_oracle_is_given_the_identity_of_its_partners(two_step):
    """Its policy's input ends with the partner's place in the pool; episodes of others do not hold it at all."""
    partners = stand_ins(two_step)
    oracle = build(configuration("ppo_oracle", "two_step", **SMALL, identities=5, pool="x"), partners)
    batch, stats = oracle.loop.runner.run(
        oracle.learner.acting(oracle.loop.init().learner), jnp.int32(0), jax.random.key(0), True, number=1
    )
    expected = np.eye(5)[np.asarray(stats.members)[:, 0]]
    np.testing.assert_array_equal(batch["prior"][:, 0], expected)
    focal = refine(batch, 2)
    params = oracle.learner.init(jax.random.key(0)).params
    embedding = np.asarray(oracle.mac.infer_all(params, oracle.mac.seen(focal), focal).embedding)
    by_seat = np.moveaxis(expected.reshape(2, -1, 5), 0, 1)
    np.testing.assert_array_equal(embedding, np.broadcast_to(by_seat, embedding.shape))
    for config in ("ppo", "iql_am", "iql_liam", "iql_omg"):
        experiment = focal_experiment(config, two_step)
        assert not experiment.mac.given_identity
        assert "prior" not in focal_scheme(experiment.mac)


def test_seat_k_of_a_refined_batch_holds_the_focal_agents_actions_in_seat_k(two_step):
    """The focal network always takes action 1, the opponents action 0: `agent_idx` must agree with the actions."""
    always = ScriptedMAC(two_step.spec, lambda obs, avail, seat, key: jnp.int32(0))
    focal, runner = team_runner(two_step, [PolicyGroup(always, jnp.zeros(1, jnp.int32), (0,))], envs=3)
    constant = jax.tree.map(jnp.zeros_like, focal.init_params(jax.random.key(0)))
    constant = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.array([0.0, 1.0]) if "fc2" in str(path) and x.ndim == 1 else x, constant
    )
    batch, stats = runner.run(constant, jnp.int32(0), jax.random.key(1), test_mode=True)
    idx, actions, filled = (np.asarray(batch[name]) for name in ("agent_idx", "actions", "filled"))
    assert idx[:, 0].tolist() == [0, 0, 0, 1, 1, 1]
    for episode in range(6):
        taken = actions[episode][filled[episode]]
        assert (taken[:, idx[episode, 0]] == 1).all()
        assert (taken[:, 1 - idx[episode, 0]] == 0).all()
    refined = refine(batch, 2)
    assert (np.asarray(refined.actions)[np.asarray(refined.filled) > 0] == 1).all()
    assert (np.asarray(refined.others_actions)[np.asarray(refined.filled) > 0] == 0).all()
    own = np.take_along_axis(np.asarray(stats.agent_returns), idx[:, 0, None].astype(int), 1)[:, 0]
    np.testing.assert_array_equal(stats.focal_returns, own)


def test_regrouping_takes_each_agents_own_numbers(foraging):
    batch = play(foraging, 4, seed=3)
    marked = EpisodeBatch({**batch.data, "agent_idx": jnp.array([[0], [0], [1], [1]], jnp.int8)}, batch.scales)
    refined = refine(marked, 2)
    for seat, episode, row in ((0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)):
        np.testing.assert_array_equal(refined.obs[row, :, seat], batch.obs[episode, :, seat])
        np.testing.assert_array_equal(refined.reward[row, :, seat], batch.reward[episode, :, seat])
        np.testing.assert_array_equal(refined.others_obs[row, :, seat, 0], batch.obs[episode, :, 1 - seat])
        np.testing.assert_array_equal(refined.filled[row, :, seat], batch.filled[episode])
        np.testing.assert_array_equal(refined.state[row, :, seat], batch.state[episode])
    whole = all_agents(batch, 2)
    np.testing.assert_array_equal(whole.others_actions[:, :, 0, 0], batch.actions[:, :, 1])
    np.testing.assert_array_equal(whole.others_actions[:, :, 1, 0], batch.actions[:, :, 0])


def test_a_sample_has_as_many_episodes_of_every_seat(foraging):
    scheme, groups = make_scheme(foraging.spec)
    focal = BasicMAC(foraging.spec, NETWORK)
    buffer = ReplayBuffer(scheme | focal_scheme(focal), groups, 24, 13)
    store = buffer.init()
    marks = jnp.tile(jnp.repeat(jnp.arange(2, dtype=jnp.int8), 4), 3)[:, None]
    store = EpisodeBatch({**store.data, "agent_idx": marks}, store.scales)
    for episodes in (8, 16, 24, 40):
        sample = buffer.sample_seats(store, 4, jnp.int32(episodes), jax.random.key(episodes), 2, 8)
        assert np.asarray(sample["agent_idx"])[:, 0].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("am_model", ["base_am", "liam_am", "omg_am"])
def test_inference_depends_on_the_agents_own_observations_only(am_model, foraging):
    """Changing the global state and the others' observations, actions and rewards does not change the embedding."""
    mac = BasicMAC(foraging.spec, {"am_model": am_model, **NETWORK, "obs_is_state": False})
    params = jax.jit(mac.init_params)(jax.random.key(0))
    batch = all_agents(play(foraging, 2, seed=3), 2)
    other = batch._replace(
        state=batch.state + 1, others_obs=batch.others_obs + 1, others_actions=1 - batch.others_actions,
        reward=batch.reward + 1,
    )  # fmt: skip
    infer = jax.jit(lambda b: mac.infer_all(params, mac.seen(b), b).embedding)
    np.testing.assert_array_equal(infer(batch), infer(other))
    own = batch._replace(obs=batch.obs + 1)
    assert (np.asarray(infer(batch)) != np.asarray(infer(own))).any()
    by_choice = BasicMAC(foraging.spec, {"am_model": "omg_am", **NETWORK, "obs_is_state": True})
    assert (np.asarray(by_choice.seen(batch).s) != np.asarray(by_choice.seen(other).s)).all()


@pytest.mark.parametrize("am_model", ["none_am", "base_am", "liam_am", "omg_am"])
def test_inference_step_by_step_equals_inference_along_whole_episodes(am_model, foraging):
    mac = BasicMAC(foraging.spec, {"am_model": am_model, **NETWORK})
    params = jax.jit(mac.init_params)(jax.random.key(0))
    episodes = play(foraging, 2, seed=3)
    batch = all_agents(episodes, 2)
    seen = mac.seen(batch)
    whole = mac.infer_all(params, seen, batch).embedding
    memory = mac.init_memory(params, 2).model
    step = jax.jit(lambda s, m: mac.am.infer(params, s, m))
    for t in range(4):
        embedding, memory = step(jax.tree.map(lambda x, t=t: x[t], seen), memory)
        np.testing.assert_allclose(embedding, whole[t], rtol=1e-4, atol=1e-5)


def test_the_index_chooses_among_several_scripted_policies(foraging):
    policies = [lambda obs, avail, seat, key, a=a: jnp.int32(a) + seat for a in (0, 2)]
    mac = ScriptedMAC(foraging.spec, *policies)
    _, seen = jax.jit(jax.vmap(foraging.reset))(jax.random.split(jax.random.key(0), 3))
    for number in (0, 1):
        actions, _ = mac.select_actions(jnp.int32(number), seen, mac.init_memory(None, 3), 0, jax.random.key(0), True)
        assert np.asarray(actions).tolist() == [[2 * number, 2 * number + 1]] * 3


@pytest.mark.slow
def test_carry_over_starts_the_second_episode_of_an_encounter_from_the_first_ones_embedding(two_step):
    """First episodes start from zeros, second ones from the first's mean embedding, and both are learned from."""
    experiment = focal_experiment("iql_omg", two_step, carry_over=True)
    assert experiment.loop.collected == 2 * 2 * 2
    state, totals = experiment.loop.run(experiment.loop.init(), 0, 2)
    assert totals.episodes == 16
    prior = np.asarray(state.replay["prior"])
    assert prior.shape == (16, 1, 3)
    # Seat after seat: two first episodes, then two second ones with the same opponents.
    second = np.tile([False, False, True, True], 4)
    assert (prior[~second] == 0).all()
    assert (prior[second] != 0).any(-1).all()
    one, other = (experiment.mac.am.init_memory(state.learner.params, jnp.full((1, 1, 3), x)) for x in (0.0, 1.0))
    assert (np.asarray(one) == 0).all()
    assert (np.asarray(one) != np.asarray(other)).any()


def test_the_mean_embedding_averages_over_an_episodes_own_steps(foraging):
    """Environments that ended early are stepped until the last one ends: those steps must not count."""
    mac = BasicMAC(foraging.spec, {"am_model": "omg_am", "carry_over": True, **NETWORK})
    params = jax.jit(mac.init_params)(jax.random.key(0))
    batch = all_agents(play(foraging, 6, seed=3), 2)._replace(prior=jnp.zeros((6, 2, mac.prior_size)))
    lengths = np.asarray(batch.filled).sum(1)
    assert lengths.min() < lengths.max()
    inferred = np.asarray(jax.jit(lambda: mac.infer_all(params, mac.seen(batch), batch).embedding)())
    carried = np.asarray(jax.jit(mac.carried)(params, batch))
    for row in range(6):
        own = inferred[: int(lengths[row, 0]), row, 0]
        np.testing.assert_allclose(carried[row, 0], own.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_carry_memory_starts_the_second_episode_from_the_policys_memory_of_the_first(two_step):
    experiment = focal_experiment("iql", two_step, carry_memory=True)
    state, _ = experiment.loop.run(experiment.loop.init(), 0, 2)
    prior = np.asarray(state.replay["prior"])
    assert prior.shape == (16, 1, experiment.mac.agent_settings.rnn_hidden_dim)
    second = np.tile([False, False, True, True], 4)
    assert (prior[~second] == 0).all()
    assert (prior[second] != 0).any(-1).all()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_what_is_carried_is_the_memory_after_the_last_step_and_learning_starts_from_it(foraging, cell):
    """Step by step while acting, as a whole while learning: the same outputs and the same memory in the end."""
    mac = BasicMAC(foraging.spec, {"carry_memory": True, "rnn_cell": cell, **NETWORK})
    params = jax.jit(mac.init_params)(jax.random.key(0))
    prior = jax.random.normal(jax.random.key(1), (6, 2, mac.prior_size))
    batch = all_agents(play(foraging, 6, seed=3), 2)._replace(prior=prior)
    seen, lengths = mac.seen(batch), np.asarray(batch.filled).sum(1).astype(int)
    nothing = jnp.zeros((*seen.own.shape[:-1], 0))
    outputs, _ = jax.jit(lambda: mac.unroll_on(params["agent"], seen, nothing))()
    carried = np.asarray(jax.jit(mac.carried)(params, batch))
    hidden, step = mac.init_memory(params, 6, prior=prior).hidden, jax.jit(lambda x, h: params["agent"].step(x, h))
    for t in range(lengths.max()):
        now, hidden = step(seen.own[t], hidden)
        np.testing.assert_allclose(now, outputs[t], rtol=1e-4, atol=1e-5)
        over = lengths == t + 1
        np.testing.assert_allclose(carried[over], np.asarray(hidden)[over], rtol=1e-4, atol=1e-5)
    assert lengths.min() < lengths.max()
    assert mac.seen(batch._replace(prior=jnp.zeros((6, 2, 0)))).start is None, "single episodes start from nothing"


@pytest.mark.slow
def test_ppo_learns_from_the_memory_it_acted_with(foraging):
    """Chunks, policy and critic start from what was carried over: before an update all probability ratios are 1."""
    config = {"carry_memory": True, "agent_output_type": "pi_logits", "seq_len": 5, **NETWORK}
    learner = PPOLearner(foraging.spec, BasicMAC(foraging.spec, config), config, focal=True)
    state = jax.jit(learner.init)(jax.random.key(0))
    prior = jax.random.normal(jax.random.key(1), (3, 2, learner.mac.prior_size))
    batch = all_agents(play(foraging, 3, seed=3), 2)._replace(prior=prior)
    rollout, metrics = jax.jit(learner.prepare)(state.params, state.target, batch, jnp.int32(0), jax.random.key(0))
    for memory in rollout.memory:
        np.testing.assert_array_equal(memory[0], prior)
    chunks, starts = chop(5, 1, rollout.along, rollout.memory)
    _, found = jax.jit(learner.chunk_loss)(state.params, chunks, starts, jnp.int32(0))
    assert found["clipped"] == 0
    values = state.params["critic"].unroll(chunks.inputs, starts.critic)[0][..., 0]
    np.testing.assert_allclose((values * chunks.acted).sum() / chunks.acted.sum(), metrics["value_mean"], rtol=1e-4)


def test_carry_memory_needs_partners(foraging):
    with pytest.raises(UserError, match="--pool"):
        QLearner(foraging.spec, BasicMAC(foraging.spec, {"carry_memory": True}), {})
    with pytest.raises(UserError, match="oracle"):
        BasicMAC(foraging.spec, {"carry_memory": True, "am_model": "oracle_am", "identities": 3})


@pytest.mark.slow
def test_a_test_plays_every_member_equally_often(two_step):
    experiment = focal_experiment("iql", two_step)
    state = experiment.loop.init()
    of_networks = experiment.loop.evaluate(experiment.learner.acting(state.learner), 0, 20)
    _, stats = experiment.loop.test(state, 0, 20)
    assert np.bincount(stats.members[:, 0]).tolist() == [4] * 5
    assert np.bincount(of_networks.members[:, 0]).tolist() == [4] * 5
    for a, b in zip(stats, of_networks, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
def test_a_network_per_seat_acts_the_same_alone_in_its_seat_and_in_a_whole_team(foraging):
    mac = BasicMAC(foraging.spec, NETWORK | {"policy_model": "idv_rnn"})
    agent = jax.jit(mac.init_params)(jax.random.key(3))
    _, seen = jax.jit(jax.vmap(foraging.reset))(jax.random.split(jax.random.key(0), 4))
    together, _ = mac.select_actions(agent, seen, mac.init_memory(agent, 4), jnp.int32(0), jax.random.key(0), True)
    for seat in range(2):
        only = seen._replace(obs=seen.obs[:, [seat]], avail_actions=seen.avail_actions[:, [seat]])
        alone, _ = mac.select_actions(
            agent, only, mac.init_memory(agent, 4, 1), jnp.int32(0), jax.random.key(0), True, jnp.array([seat])
        )
        np.testing.assert_array_equal(alone[:, 0], together[:, seat])

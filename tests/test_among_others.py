"""One agent among others: who is met, who sits where, what changes and what does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import EpisodeBatch, ReplayBuffer, make_scheme
from omg.components.focal_batch import everybody, refine
from omg.controllers import BasicMAC, FocalMAC, RuleMAC
from omg.modules.vae import VAE
from omg.opponents.pool import Kind, throw_away
from omg.parts import StandIns, build
from omg.runners import Opponents, TeamRunner, focal_scheme
from tests.conftest import play
from tests.helpers import configuration

SMALL = {
    "rnn_hidden_dim": 4, "batch_size": 2, "buffer_size": 16, "test_nepisode": 4, "batch_size_run": 2,
    "vae_latent_dim": 3, "vae_hidden_dim": 4, "cond_fc_dim": 3, "cond_rnn_dim": 5, "am_hidden_dim": 4, "H": 3,
    "length_buckets": 1,
}  # fmt: skip
BOARD = {"env_args__grid_size": 5, "env_args__food": 1, "env_args__episode_limit": 12}
NETWORK = {"rnn_hidden_dim": 4}


def stand_ins(env):
    """Five opponents of two kinds, and a VAE, none of them trained."""
    learned = throw_away(env.spec, NETWORK, 3)[0]
    other = throw_away(env.spec, NETWORK | {"policy_model": "idv_rnn"}, 2)[0]._replace(ids=(3, 4))
    return StandIns([learned, other], VAE(env.spec.obs_size, 4, 3, jax.random.key(5)))


def focal_parts(config, env, **updates):
    """Among the stand-ins, on the two-step game: the smallest world with a future."""
    small = SMALL | ({"buffer_size": 2, "batch_size": 2} if config.startswith("ppo") else {})
    pool = {"pool": "x"} if config in ("iql", "ppo") else {}
    return build(configuration(config, "two_step", **(small | pool | updates)), stand_ins(env))


@pytest.mark.parametrize("config", ["iql", "iql_am", "iql_liam", "iql_omg", "ppo_omg"])
def test_the_focal_agent_learns_and_nobody_else_changes_by_a_bit(config, two_step):
    parts = focal_parts(config, two_step)
    before = jax.device_get((parts.loop.init().learner, parts.loop.runner.policies))
    state, totals = parts.loop.run(parts.loop.init(), 0, 4)
    after = jax.device_get((state.learner, parts.loop.runner.policies))
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


def team_runner(env, kinds, worlds, **config):
    focal = FocalMAC(env.spec, NETWORK | config)
    opponents = (Opponents(tuple(range(1, env.spec.n_agents)), tuple(kinds)),)
    scheme, groups = make_scheme(env.spec)
    return focal, TeamRunner(env, focal, (0,), opponents, scheme, groups, worlds)


def test_every_member_is_met_equally_often(two_step):
    """Kinds of different sizes: each member's share of the worlds is the same."""
    learned = throw_away(two_step.spec, NETWORK, 3)[0]
    rules = [lambda obs, avail, seat, key, a=a: jnp.int32(a) for a in (0, 1)]
    kinds = [learned, Kind(RuleMAC(two_step.spec, *rules), jnp.arange(2), (3, 4))]
    focal, runner = team_runner(two_step, kinds, worlds=2)
    agent = {"agent": focal.init_agent(jax.random.key(0))}
    meet = jax.jit(lambda key, i: runner.run(agent, jnp.int32(0), key, False, keep=False, number=i)[1].members)
    met = np.concatenate([np.asarray(meet(jax.random.key(i), i))[:, 0] for i in range(1500)])
    shares = np.bincount(met, minlength=5) / len(met)
    # Two different members share each of 1500 collections: the standard error of a share is about 0.008.
    np.testing.assert_allclose(shares, 0.2, atol=0.03)


def test_slot_k_holds_what_the_focal_agent_did_in_seat_k(two_step):
    """The focal network always takes action 1, everybody else action 0: the marks must agree with the actions."""
    always = RuleMAC(two_step.spec, lambda obs, avail, seat, key: jnp.int32(0))
    focal, runner = team_runner(two_step, [Kind(always, jnp.zeros(1, jnp.int32), (0,))], worlds=3)
    network = focal.init_agent(jax.random.key(0))
    stubborn = jax.tree.map(jnp.zeros_like, network)
    stubborn = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.array([0.0, 1.0]) if "fc2" in str(path) and x.ndim == 1 else x, stubborn
    )
    batch, _ = runner.run({"agent": stubborn}, jnp.int32(0), jax.random.key(1), test_mode=True)
    idx, actions, filled = (np.asarray(batch[name]) for name in ("agent_idx", "actions", "filled"))
    assert idx[:, 0].tolist() == [0, 0, 0, 1, 1, 1]
    for episode in range(6):
        taken = actions[episode][filled[episode]]
        assert (taken[:, idx[episode, 0]] == 1).all()
        assert (taken[:, 1 - idx[episode, 0]] == 0).all()
    slots = refine(batch, 2)
    assert (np.asarray(slots.actions)[np.asarray(slots.filled) > 0] == 1).all()
    assert (np.asarray(slots.others_actions)[np.asarray(slots.filled) > 0] == 0).all()


def test_regrouping_takes_each_agents_own_numbers(foraging):
    batch = play(foraging, 4, seed=3)
    marked = EpisodeBatch({**batch.data, "agent_idx": jnp.array([[0], [0], [1], [1]], jnp.int8)}, batch.scales)
    slots = refine(marked, 2)
    for seat, episode, row in ((0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)):
        np.testing.assert_array_equal(slots.obs[row, :, seat], batch.obs[episode, :, seat])
        np.testing.assert_array_equal(slots.reward[row, :, seat], batch.reward[episode, :, seat])
        np.testing.assert_array_equal(slots.others_obs[row, :, seat, 0], batch.obs[episode, :, 1 - seat])
        np.testing.assert_array_equal(slots.filled[row, :, seat], batch.filled[episode])
        np.testing.assert_array_equal(slots.state[row, :, seat], batch.state[episode])
    whole = everybody(batch, 2)
    np.testing.assert_array_equal(whole.others_actions[:, :, 0, 0], batch.actions[:, :, 1])
    np.testing.assert_array_equal(whole.others_actions[:, :, 1, 0], batch.actions[:, :, 0])


def test_a_sample_has_as_many_episodes_of_every_seat(foraging):
    scheme, groups = make_scheme(foraging.spec)
    focal = FocalMAC(foraging.spec, NETWORK)
    buffer = ReplayBuffer(scheme | focal_scheme(focal), groups, 24, 13)
    store = buffer.init()
    marks = jnp.tile(jnp.repeat(jnp.arange(2, dtype=jnp.int8), 4), 3)[:, None]
    store = EpisodeBatch({**store.data, "agent_idx": marks}, store.scales)
    for episodes in (8, 16, 24, 40):
        sample = buffer.sample_seats(store, 4, jnp.int32(episodes), jax.random.key(episodes), 2, 8)
        assert np.asarray(sample["agent_idx"])[:, 0].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("am_model", ["base_am", "liam_am", "omg_am"])
def test_inference_cannot_see_what_the_others_hold(am_model, foraging):
    """The state of the world and whatever the others see and do may change: the embedding stays."""
    mac = FocalMAC(foraging.spec, {"am_model": am_model, **NETWORK, "obs_is_state": False})
    params = {"agent": mac.init_agent(jax.random.key(0)), **mac.am.init(jax.random.key(1))}
    batch = everybody(play(foraging, 2, seed=3), 2)
    other = batch._replace(
        state=batch.state + 1, others_obs=batch.others_obs + 1, others_actions=1 - batch.others_actions,
        reward=batch.reward + 1,
    )  # fmt: skip
    infer = jax.jit(lambda b: mac.infer_all(params, mac.seen(b), b).embedding)
    np.testing.assert_array_equal(infer(batch), infer(other))
    own = batch._replace(obs=batch.obs + 1)
    assert (np.asarray(infer(batch)) != np.asarray(infer(own))).any()
    by_choice = FocalMAC(foraging.spec, {"am_model": "omg_am", **NETWORK, "obs_is_state": True})
    assert (np.asarray(by_choice.seen(batch).s) != np.asarray(by_choice.seen(other).s)).all()


@pytest.mark.parametrize("am_model", ["none_am", "base_am", "liam_am", "omg_am"])
def test_acting_step_by_step_infers_what_a_whole_unroll_does(am_model, foraging):
    mac = FocalMAC(foraging.spec, {"am_model": am_model, **NETWORK})
    params = {"agent": mac.init_agent(jax.random.key(0)), **mac.am.init(jax.random.key(1))}
    episodes = play(foraging, 2, seed=3)
    batch = everybody(episodes, 2)
    seen = mac.seen(batch)
    whole = mac.infer_all(params, seen, batch).embedding
    memory = mac.init_memory(params, 2).model
    step = jax.jit(lambda s, m: mac.am.infer(params, s, m))
    for t in range(4):
        embedding, memory = step(jax.tree.map(lambda x, t=t: x[t], seen), memory)
        np.testing.assert_allclose(embedding, whole[t], rtol=1e-4, atol=1e-5)


def test_a_rule_of_several_is_the_one_that_was_asked_for(foraging):
    rules = [lambda obs, avail, seat, key, a=a: jnp.int32(a) + seat for a in (0, 2)]
    mac = RuleMAC(foraging.spec, *rules)
    _, seen = jax.vmap(foraging.reset)(jax.random.split(jax.random.key(0), 3))
    for number in (0, 1):
        actions, _ = mac.select_actions(jnp.int32(number), seen, mac.init_memory(None, 3), 0, jax.random.key(0), True)
        assert np.asarray(actions).tolist() == [[2 * number, 2 * number + 1]] * 3


def test_what_was_inferred_before_starts_the_next_episode(two_step):
    """First meetings start from nothing, second ones from the first's summary, and both are learned from."""
    parts = focal_parts("iql_omg", two_step, carry_over=True)
    assert parts.loop.collected == 2 * 2 * 2
    state, totals = parts.loop.run(parts.loop.init(), 0, 2)
    assert totals.episodes == 16
    prior = np.asarray(state.replay["prior"])
    assert prior.shape == (16, 1, 3)
    # Seat after seat: two first meetings, then two second ones with the same others.
    second = np.tile([False, False, True, True], 4)
    assert (prior[~second] == 0).all()
    assert (prior[second] != 0).any(-1).all()
    one, other = (parts.mac.am.init_memory(state.learner.params, jnp.full((1, 1, 3), x)) for x in (0.0, 1.0))
    assert (np.asarray(one) == 0).all()
    assert (np.asarray(one) != np.asarray(other)).any()


def test_a_summary_is_the_mean_over_the_episodes_own_steps(foraging):
    """Worlds that ended early go on being stepped until the last one ends: nothing of that may count."""
    mac = FocalMAC(foraging.spec, {"am_model": "omg_am", "carry_over": True, **NETWORK})
    params = {"agent": mac.init_agent(jax.random.key(0)), **mac.am.init(jax.random.key(1))}
    batch = everybody(play(foraging, 6, seed=3), 2)._replace(prior=jnp.zeros((6, 2, mac.prior_size)))
    lengths = np.asarray(batch.filled).sum(1)
    assert lengths.min() < lengths.max()
    inferred = np.asarray(mac.infer_all(params, mac.seen(batch), batch).embedding)
    left = np.asarray(mac.summary(params, batch))
    for row in range(6):
        own = inferred[: int(lengths[row, 0]), row, 0]
        np.testing.assert_allclose(left[row, 0], own.mean(0), rtol=1e-4, atol=1e-5)


def test_tests_meet_everyone_and_seeds_meet_the_same_kinds(two_step):
    parts = focal_parts("iql", two_step, test_nepisode=20)
    stats = parts.tester.play(parts.learner.acting(parts.loop.init().learner), 0)
    assert np.bincount(stats.members[:, 0]).tolist() == [4] * 5


def test_members_act_alike_alone_and_seated_among_others(foraging):
    """A frozen network of its own per seat gives the same actions through the team as in a team of its own."""
    mac = BasicMAC(foraging.spec, NETWORK | {"policy_model": "idv_rnn"})
    agent = mac.init_agent(jax.random.key(3))
    _, seen = jax.vmap(foraging.reset)(jax.random.split(jax.random.key(0), 4))
    together, _ = mac.select_actions(agent, seen, mac.init_memory(agent, 4), jnp.int32(0), jax.random.key(0), True)
    for seat in range(2):
        only = seen._replace(obs=seen.obs[:, [seat]], avail_actions=seen.avail_actions[:, [seat]])
        alone, _ = mac.select_actions(
            agent, only, mac.init_memory(agent, 4, 1), jnp.int32(0), jax.random.key(0), True, jnp.array([seat])
        )
        np.testing.assert_array_equal(alone[:, 0], together[:, seat])

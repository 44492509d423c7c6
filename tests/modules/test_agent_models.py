"""All agent models: what they may see while acting. OMG+, MeLIBA and the mixture: losses against plain loops."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.chunks import later_starts
from omg.components.episode_buffer import EpisodeBatch, all_agents, make_scheme, time_first
from omg.controllers import BasicMAC
from omg.envs import make
from omg.evaluation.encounters import Encounter
from omg.learners import PPOLearner, QLearner4AM
from omg.learners.am_learner import AMLearner, VAESettings
from omg.learners.on_policy import Episodes
from omg.learners.pqn_learner import PQNLearner
from omg.modules.agents import AgentSettings, IDVRNNAgent
from omg.modules.agents.mix_rnn_agent import PARTS, MixAgentSettings, MixRNNAgent
from omg.modules.agents.rnn_agent import RNNAgent
from omg.modules.am import REGISTRY, Inferred, Judge, Seen
from omg.modules.am.meliba_am import before
from omg.modules.am.mix_am import RIVALS, info_nce, later, returns_of
from omg.modules.am.omg_am import candidate_values, choose
from omg.modules.am.omg_plus_am import ChosenOfOthers, weighted_likelihood
from omg.modules.vae import SPREAD, VAE, Gaussian, kl, unit_gaussian
from omg.utils.settings import UserError
from tests.conftest import play

KEY = jax.random.key(0)
LATENT = 3
CONFIG = {
    "rnn_hidden_dim": 4, "vae_latent_dim": LATENT, "vae_hidden_dim": 4, "cond_fc_dim": 3, "cond_rnn_dim": 5, "H": 3,
    "am_hidden_dim": 4, "liam_embed_dim": 3, "meliba_latent_dim": 2, "mix_embed_dim": 2, "mix_ahead": 2,
    "identities": 5, "t_max": 100, "eta_start": 0.5, "eta_finish": 0.5, "subgoal_features": "obs", "who_dim": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def hunt():
    """Stag hunt with three hunters, who leave at different times."""
    env = make("stag_hunt", grid_size=4, hunters=3, hares=3, episode_limit=8)
    batch = play(env, 4, seed=2)
    assert not batch.alive.all()
    return env, all_agents(batch, 3)


def model(env, **config):
    mac = BasicMAC(env.spec, CONFIG | config)
    return mac, mac.am, jax.jit(mac.am.init)(KEY)


def vae_of(env):
    """A VAE with statistics of latents that are not those of new networks."""
    rows = jax.random.normal(jax.random.key(8), (32, env.spec.obs_size))
    return VAE(env.spec.obs_size, 4, LATENT, jax.random.key(7)).with_latents_of(rows)


def steps_taken(batch):
    """`(time, episode, seat)` of every step that the focal agent took while alive."""
    mask = np.swapaxes(np.asarray(batch.mask), 0, 1)
    return list(zip(*np.nonzero(mask), strict=True))


def later_cross_entropy(decoder, who, batch, key):
    """Of the others' actions some steps later, step by step; the distance is the one that `key` samples."""
    ahead = int(jax.random.randint(key, (), 0, int(batch.filled.sum(1).max())))
    plain, mask, who = jax.device_get((batch, batch.mask, who))
    inputs, taken = [], []
    for t, b, i, j in np.ndindex(len(who), 4, 3, 2):
        u = t + ahead
        if mask[b, t, i] and u < len(who) and plain.filled[b, u, i] and plain.others_alive[b, u, i, j]:
            inputs.append(np.concatenate([who[t, b, i], plain.others_obs[b, u, i].ravel()]))
            taken.append((j, plain.others_actions[b, u, i, j]))
    log_pi = np.asarray(jax.nn.log_softmax(decoder(jnp.asarray(inputs)).reshape(len(inputs), 2, -1), -1))
    assert len(taken) > 5
    return np.mean([-log_pi[k, j, action] for k, (j, action) in enumerate(taken)])


@pytest.mark.parametrize("am_model", sorted(REGISTRY))
def test_the_others_observations_and_actions_never_reach_acting(am_model, hunt):
    """With other observations, actions and deaths of the others, what is inferred is the same; the loss is not."""
    env, batch = hunt
    mac, am, params = model(env, am_model=am_model)
    batch = batch._replace(prior=jnp.ones((4, 3, am.prior_size)))
    changed = batch._replace(
        others_obs=batch.others_obs + 1, others_actions=1 - batch.others_actions, others_alive=~batch.others_alive
    )
    seen, other = mac.seen(batch), mac.seen(changed)
    infer_all, infer = jax.jit(mac.infer_all), jax.jit(am.infer)
    whole = infer_all(params, seen, batch).embedding
    np.testing.assert_array_equal(whole, infer_all(params, other, changed).embedding)
    memory = am.init_memory(params, batch.prior)
    for t in range(3):
        embedding, memory = infer(params, Seen(seen.own[t], seen.s[t]), memory)
        np.testing.assert_allclose(embedding, whole[t], rtol=1e-5, atol=1e-6, err_msg="step by step: the same")


@pytest.mark.parametrize("am_model", ["base_am", "liam_am", "meliba_am", "mix_am", "omg_plus_am"])
def test_what_is_inferred_is_trained_by_the_others_actions(am_model, hunt):
    """The gradient of the loss reaches every network, and differs for other actions of the others."""
    env, batch = hunt
    mac, am, params = model(env, am_model=am_model)

    def gradient(actions):
        of = batch._replace(others_actions=actions)
        seen = mac.seen(of)

        def loss(p):
            chosen = hindsight(env, am, seen, of)[0] if am_model == "omg_plus_am" else None
            return am.loss(p, seen, of, mac.infer_all(p, seen, of), chosen, KEY)[0]

        return jax.tree.leaves(jax.jit(jax.grad(loss))(params))

    one, two = gradient(batch.others_actions), gradient((batch.others_actions + 1) % env.spec.n_actions)
    assert all(float(abs(g).max()) > 0 for g in one)
    assert any(float(abs(a - b).max()) > 1e-6 for a, b in zip(one, two, strict=True))


WITH_MEMORY = [(name, {}) for name in sorted(set(REGISTRY) - {"none_am", "oracle_am"})]


@pytest.mark.parametrize(("am_model", "config"), [*WITH_MEMORY, ("omg_am", {"carry_over": True})])
@pytest.mark.parametrize("size", [3, 5])
def test_chunks_of_an_agent_model_are_its_whole_unroll(am_model, config, size, hunt):
    """9 time steps in 3 chunks of 3, or in 2 of 5, one of them padded. All that is inferred is the same."""
    env, batch = hunt
    mac, am, params = model(env, am_model=am_model, **config)
    params = jax.tree.map(lambda x: x + 0.1, params)
    batch = batch._replace(prior=jnp.ones((4, 3, am.prior_size)))
    seen = mac.seen(batch)
    infer = jax.jit(mac.infer_all)
    whole = infer(params, seen, batch)
    starts = later_starts(whole.memory, size)
    np.testing.assert_array_equal(starts, whole.memory[size - 1 : -1 : size])
    by_chunks = infer(params, seen, batch, starts)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(by_chunks), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    moved = infer(params, seen, batch, starts + 1).embedding
    np.testing.assert_array_equal(moved[:size], by_chunks.embedding[:size])
    assert (abs(moved - by_chunks.embedding)[size:].max((1, 2, 3)) > 1e-4).all(), "from the given memories"


@pytest.mark.parametrize(
    ("learner_class", "minibatches", "am_model"),
    [(PPOLearner, 1, "liam_am"), (PPOLearner, 2, "meliba_am"), (PQNLearner, 2, "base_am"), (PPOLearner, 1, "none_am")],
)
def test_an_update_unrolls_agent_models_by_chunks(learner_class, minibatches, am_model):
    """Episodes of 8 steps in chunks of 3: two memories besides the first, of as many episodes as a minibatch has."""
    env = make("stag_hunt", grid_size=4, hunters=3, hares=3, episode_limit=8)
    config = CONFIG | {"am_model": am_model, "seq_len": 3, "minibatches": minibatches, "agent_output_type": "pi_logits"}
    learner = learner_class(env.spec, BasicMAC(env.spec, config), config)
    infer_all, given = learner.mac.infer_all, []

    def noted(params, seen, batch, starts=None):
        given.append(None if starts is None else starts.shape[:2])
        return infer_all(params, seen, batch, starts)

    learner.mac.infer_all = noted
    batch = EpisodeBatch.zeros(*make_scheme(env.spec), 4, 9)
    jax.eval_shape(lambda: learner.gradient(learner.init(KEY), batch, jnp.int32(0), KEY))
    assert given[0] is None, "before the update: whole episodes"
    assert set(given[1:]) == {None if am_model == "none_am" else (2, 4 // minibatches)}


def test_on_policy_learners_train_agent_models_on_chunks(hunt):
    """Of two episodes, from other memories: the model's loss is another. Its memories are no part of the gradient."""
    env, batch = hunt
    config = CONFIG | {"am_model": "liam_am", "agent_output_type": "pi_logits", "seq_len": 3}
    learner = PPOLearner(env.spec, BasicMAC(env.spec, config), config)
    learner.chunk_loss = lambda params, chunks, starts, t_env: (0.0, {})
    params = jax.jit(learner.init_params)(KEY)
    memory = jax.jit(learner.mac.infer_all)(params, learner.mac.seen(batch), batch).memory

    @jax.jit
    def loss(memory):
        episodes = Episodes(batch, None, later_starts(memory, 3)).rows(jnp.array([1, 3]))
        assert episodes.batch.obs.shape[0] == 2
        assert episodes.starts.shape[:2] == (2, 2)
        return learner.total_loss(params, None, None, episodes, jnp.int32(0), KEY)[0]

    exact, other = loss(memory), loss(memory.at[2, 3].add(1.0))
    assert abs(exact - other) > 1e-4
    assert exact == loss(memory.at[2, 0].add(1.0)), "of an episode that is not among the two"
    assert (jax.grad(loss)(memory) == 0).all()


def test_an_episode_of_seq_len_steps_is_one_chunk_and_longer_ones_have_chunks_of_about_that_length():
    """An episode has one time step more than steps. By hand: 51 time steps in 17s; 7 in chunks of at most 2."""
    memory = jnp.arange(51.0)[:, None, None, None]
    assert later_starts(memory[:21], 20) is None
    np.testing.assert_array_equal(later_starts(memory[:22], 20).ravel(), [10])
    np.testing.assert_array_equal(later_starts(memory, 20).ravel(), [16, 33])
    np.testing.assert_array_equal(later_starts(memory[:7], 1).ravel(), [1, 3, 5])
    assert later_starts(None, 20) is None


# --- OMG+


def hindsight(env, am, seen, batch, key=KEY, t_env=0):
    """The hindsight choice with a random network as the judge."""
    agent = RNNAgent(am.own_size + am.output_size, 5, 3, AgentSettings(4, init="pytorch"), jax.random.key(3))

    @jax.jit
    def choose(vae, agent, seen, batch, key):
        judge = Judge(agent, jnp.zeros((*seen.own.shape[:3], 4)), time_first(batch.avail_actions))
        embedding = jnp.full((*seen.own.shape[:3], am.output_size), -5.0)
        inferred = Inferred(embedding, am.subgoals_in(embedding))
        return am.choose_subgoals(vae, judge, seen, batch, inferred, jnp.int32(t_env), key)

    goals, chosen, used = choose(vae_of(env), agent, seen, batch, key)
    return chosen, goals, used


@pytest.mark.parametrize("form", ["state", "change"])
@pytest.mark.parametrize("whose", ["others", "state"])
def test_a_subgoal_is_the_latent_of_what_an_agent_sees_some_steps_later(whose, form, hunt):
    env, batch = hunt
    mac, am, _ = model(env, am_model="omg_plus_am", subgoal_of=whose, subgoal_form=form, subgoal_mode="next")
    seen, vae = mac.seen(batch), vae_of(env)
    chosen = jax.device_get(hindsight(env, am, seen, batch)[0])
    others = time_first(batch.others_obs if whose == "others" else batch.obs[..., None, :])
    alive = time_first(batch.others_alive if whose == "others" else batch.alive[..., None])
    counted = np.asarray(alive) & (np.asarray(time_first(batch.filled))[[0, *range(8)], ..., None] > 0)
    latents = np.asarray(vae.standard_latents(vae.encode(others)).mu)
    tested = 0
    for t, b, i in steps_taken(batch):
        for j in range(others.shape[3]):
            both = counted[t, b, i, j] and counted[t + 1, b, i, j]
            assert chosen.counts[t, b, i, j] == both, "an agent that has left has no subgoal"
            expected = latents[t + 1, b, i, j] - (latents[t, b, i, j] if form == "change" else 0)
            if both and chosen.ahead[t, b, i] == 1:
                mu = chosen.subgoal.mu[t, b, i].reshape(-1, LATENT)[j]
                np.testing.assert_allclose(mu, expected, rtol=1e-3, atol=1e-4)
                tested += 1
    assert tested > 10


def test_an_agent_is_described_by_its_own_place_in_the_state(hunt):
    """Whatever the others or the prey do: position and presence of that hunter alone."""
    env, batch = hunt
    mac, am, _ = model(env, am_model="omg_plus_am", subgoal_features="agent", normalise=False)
    assert am.of_agents
    vae = VAE(3, 4, LATENT, jax.random.key(7))
    found = am.latents(vae, mac.seen(batch), batch).mu.reshape(*time_first(batch.state).shape[:3], 2, LATENT)
    of_hunters = np.asarray(batch.state[..., 0, :9]).reshape(*batch.state.shape[:2], 3, 3)
    for seat in range(3):
        for j in range(2):
            expected = vae.encode(jnp.asarray(of_hunters[:, :, (seat + 1 + j) % 3])).mu
            np.testing.assert_allclose(found[:, :, seat, j], time_first(expected), rtol=1e-4, atol=1e-5)


def test_agents_that_left_give_no_candidates(hunt):
    """A state counts as a candidate while some other agent is still there; without the mask until the episode ends."""
    env, batch = hunt
    gone = batch._replace(others_alive=batch.others_alive.at[:, 3:].set(False))
    for mask_dead in (True, False):
        exists = np.asarray(model(env, am_model="omg_plus_am", mask_dead=mask_dead)[1].exists(gone))
        filled = np.asarray(time_first(batch.filled))
        for j, t in np.ndindex(*exists.shape[:2]):
            inside = (filled[t] > 0) & (filled[t + j] > 0) if t + j < len(filled) - 1 else np.zeros((4, 3), bool)
            there = np.asarray(time_first(gone.others_alive).any(-1))[min(t + j + 1, 8)] if mask_dead else True
            np.testing.assert_array_equal(exists[j, t], inside & there)


def test_eta_decides_for_whole_episodes(hunt):
    env, batch = hunt
    for by, varies in (("episode", False), ("step", True)):
        mac, am, _ = model(env, am_model="omg_plus_am", eta_by=by, mask_dead=False)
        longest = int(batch.filled[:, :, 0].sum(1).argmax())
        steps = int(batch.filled[longest, :, 0].sum())
        used = jax.jit(lambda key, mac=mac, am=am: hindsight(env, am, mac.seen(batch), batch, key)[2])
        each = np.concatenate([used(jax.random.key(seed))[:steps, longest, :, 0] for seed in range(6)], -1)
        assert (each.any(0) != each.all(0)).any() == varies
        assert 0 < each.mean() < 1, "η is one half"


def test_a_decoded_subgoal_changes_the_others_alone(hunt):
    env, batch = hunt
    mac, am, _ = model(env, am_model="omg_plus_am", subgoal_features="agent")
    rows = jax.random.normal(jax.random.key(8), (32, 3))
    vae = VAE(3, 4, LATENT, jax.random.key(7)).with_latents_of(rows)
    batch = batch._replace(seat=jnp.broadcast_to(jnp.arange(3), (4, 3)))
    latents = am.latents(vae, mac.seen(batch), batch)
    described = np.asarray(am.decoded(vae, latents.mu, batch, False))
    state = np.asarray(time_first(batch.state))
    for seat in range(3):
        others = [(seat + 1) % 3, (seat + 2) % 3]
        places = [list(env.spec.agents_in_state[other]) for other in others]
        for where in places:
            expected = vae.decode(vae.encode(jnp.asarray(state[:, :, seat][..., where])).mu)
            np.testing.assert_allclose(described[:, :, seat][..., where], expected, rtol=1e-4, atol=1e-5)
        rest = np.setdiff1d(np.arange(state.shape[-1]), np.ravel(places))
        np.testing.assert_array_equal(described[:, :, seat][..., rest], state[:, :, seat][..., rest])


def test_observations_are_drawn_only_where_they_are_global_states(hunt):
    env, batch = hunt
    _, am, _ = model(env, am_model="omg_am")
    vae, points = vae_of(env), jnp.ones((2, 4, 3, LATENT))
    assert am.decoded(vae, points, batch, False) is None
    np.testing.assert_array_equal(am.decoded(vae, points, batch, True), vae.decode(points))


def test_the_chosen_subgoals_likelihood_and_the_others_present(hunt):
    """Over steps of the living focal agent, and others whose subgoal counts; and the others' later actions."""
    env, batch = hunt
    mac, am, params = model(env, am_model="omg_plus_am", am_loss_coef=0.5, present_coef=0.25, later_coef=3.0)
    seen = mac.seen(batch)
    inferred, chosen = jax.jit(mac.infer_all)(params, seen, batch), hindsight(env, am, seen, batch)[0]
    loss, metrics = jax.jit(am.loss)(params, seen, batch, inferred, chosen, KEY)
    plain, counts = jax.device_get((batch, chosen.counts))
    mu, log_var, wanted = (
        np.asarray(x).reshape(*x.shape[:-1], 2, LATENT)
        for x in (inferred.embedding[..., 2:], inferred.log_var, chosen.subgoal.mu)
    )
    decoded = np.asarray(params["omg_plus_am"].decoder(inferred.embedding)).reshape(*mu.shape[:4], -1)
    obs, logits = decoded[..., : env.spec.obs_size], decoded[..., env.spec.obs_size :]
    unlikely, squared, cross_entropy = [], [], []
    for t, b, i in steps_taken(batch):
        for j in np.flatnonzero(counts[t, b, i]):
            variance = np.exp(log_var[t, b, i, j])
            error = (wanted[t, b, i, j] - mu[t, b, i, j]) ** 2 / variance
            unlikely.append(0.5 * np.mean(variance * (error + np.log(variance))))
    log_pi = np.asarray(jax.nn.log_softmax(logits, -1))
    for t, b, i, j in np.ndindex(*decoded.shape[:4]):
        if plain.filled[b, t, i] and plain.others_alive[b, t, i, j]:
            squared.append(np.mean((obs[t, b, i, j] - plain.others_obs[b, t, i, j]) ** 2))
            cross_entropy.append(-log_pi[t, b, i, j, plain.others_actions[b, t, i, j]])
    np.testing.assert_allclose(metrics["subgoal_loss"], np.mean(unlikely), rtol=1e-4)
    later = later_cross_entropy(params["omg_plus_am"].later, inferred.embedding[..., :2], batch, KEY)
    np.testing.assert_allclose(metrics["later_loss"], later, rtol=1e-4)
    total = np.mean(unlikely) + 0.25 * (np.mean(squared) + np.mean(cross_entropy)) + 3 * later
    np.testing.assert_allclose(loss, 0.5 * total, rtol=1e-4)
    mac, am, params = model(env, am_model="omg_plus_am", subgoal_loss="kl", present_coef=0.0, who_dim=0)
    divergence = kl(
        *(
            Gaussian(*(x.reshape(*x.shape[:-1], 2, LATENT) for x in g))
            for g in (Gaussian(inferred.embedding[..., 2:], inferred.log_var), chosen.subgoal)
        )
    )
    at = tuple(np.nonzero(np.asarray(time_first(batch.mask)[..., None] * chosen.counts)))
    loss, metrics = am.loss(params, seen, batch, inferred._replace(embedding=inferred.embedding[..., 2:]), chosen, KEY)
    np.testing.assert_allclose(loss, np.asarray(divergence)[at].mean(), rtol=1e-4)
    assert am.predicted_actions(params, inferred) is None


def test_latents_are_standardised_by_the_statistics_of_the_vaes_training_data():
    """Whatever a batch holds: the same latent has the same standardised value in every batch."""
    rows = jnp.asarray(np.random.default_rng(0).normal(3.0, 2.0, (64, 5)), jnp.float32)
    vae = VAE(5, 8, 2, KEY).fitted_to(rows.mean(0), rows.std(0)).with_latents_of(rows)
    found = vae.encode(rows)
    scaled, mu = vae.standard_latents(found), np.asarray(found.mu)
    variance = mu.var(0) + SPREAD
    np.testing.assert_allclose(scaled.mu, (mu - mu.mean(0)) / np.sqrt(variance), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scaled.log_var, found.log_var - np.log(variance), rtol=1e-3, atol=1e-5)
    one = vae.standard_latents(vae.encode(rows[:1]))
    np.testing.assert_allclose(one.mu[0], scaled.mu[0], rtol=1e-4, atol=1e-5)


def test_pre_training_remembers_the_statistics_of_the_latents():
    rows = jnp.asarray(np.random.default_rng(1).normal(0.0, 1.0, (64, 5)), jnp.float32)
    settings = VAESettings(vae_updates=3, vae_batch_size=8)
    vae = AMLearner(settings).train(VAE(5, 8, 2, KEY), rows, KEY, lambda done, metrics: None)
    np.testing.assert_allclose(vae.latent_mean, vae.encode(rows).mu.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vae.latent_deviation, vae.encode(rows).mu.std(0), rtol=1e-4, atol=1e-5)


def test_the_weighted_likelihood_finds_mean_and_spread_without_steep_gradients():
    points = jnp.array([-2.0, 2.0])[:, None]

    @jax.jit
    @jax.grad
    def slope(believed):
        rows = jax.tree.map(lambda x: jnp.full((2, 1), x), believed)
        return weighted_likelihood(rows, points).mean()

    def at(mu, variance):
        found = slope(Gaussian(jnp.float32(mu), jnp.log(jnp.float32(variance))))
        return float(found.mu), float(found.log_var)

    np.testing.assert_allclose(at(0.0, 4.0), 0, atol=1e-6)
    assert at(0.0, 3.0)[1] < 0 < at(0.0, 5.0)[1]
    for variance in (0.001, 1.0, 100.0):
        np.testing.assert_allclose(at(0.5, variance)[0], 0.5, rtol=1e-5, err_msg="that of the squared error")
    found = weighted_likelihood(Gaussian(jnp.zeros((2, 1)), jnp.full((2, 1), jnp.log(4.0))), points)
    np.testing.assert_allclose(found, 4 * 0.5 * (np.log(4) + 1), rtol=1e-6)


@pytest.mark.parametrize("network", [RNNAgent, IDVRNNAgent])
def test_a_change_is_valued_as_the_difference_to_the_present(network):
    own, latent, n, batch, time, horizon, actions = 3, 2, 2, 2, 4, 2, 5
    agent = network(own + latent, actions, n, AgentSettings(4, init="pytorch"), jax.random.key(0))
    inputs = jax.random.normal(KEY, (time, batch, n, own))
    latents = jax.random.normal(jax.random.key(1), (time, batch, n, latent))
    judge = Judge(agent, jnp.zeros((time, batch, n, 4)), jnp.ones((time, batch, n, actions), bool), latents)
    values = jax.jit(candidate_values, static_argnums=3)(judge, Seen(inputs, inputs), latents, horizon)
    step = jax.jit(lambda x, h: agent.step(x, h))
    for t, j in ((0, 1), (1, 2), (2, 1)):
        change = latents[t + j] - latents[t]
        q = step(jnp.concatenate([inputs[t], change], -1), jnp.zeros((batch, n, 4)))[0]
        np.testing.assert_allclose(values[j - 1, t], q.mean(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target_model", [True, False])
def test_the_target_network_sees_the_subgoals_of_a_frozen_agent_model(target_model, hunt):
    """Between two copies the TD target does not move with the agent model; without the setting it does."""
    env, batch = hunt
    config = CONFIG | {"am_model": "omg_plus_am", "target_model": target_model, "double_q": False, "eta_start": 0.0}
    config |= {"eta_finish": 0.0, "target_update_interval": 2}
    learner = QLearner4AM(env.spec, BasicMAC(env.spec, config), config, focal=True, artifacts={"vae": vae_of(env)})
    state = jax.jit(learner.init)(KEY)
    assert ("omg_plus_am" in state.target) == target_model
    moved = state.params | {"omg_plus_am": jax.tree.map(lambda x: x + 0.1, state.params["omg_plus_am"])}
    seen = learner.mac.seen(batch)

    @jax.jit
    def frozen(params):
        inferred = learner.mac.infer_all(params, seen, batch)
        condition = learner.condition(params, state.target, seen, batch, inferred, jnp.int32(0), KEY)
        return learner.target_embedding(state.target, seen, batch, condition)

    same = bool(jnp.allclose(frozen(state.params), frozen(moved)))
    assert same == target_model
    if target_model:
        later_state = learner.refresh_target(state._replace(params=moved, updates=jnp.int32(2)))
        for a, b in zip(
            jax.tree.leaves(later_state.target["omg_plus_am"]), jax.tree.leaves(moved["omg_plus_am"]), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_hindsight_subgoals_are_the_same_for_both_networks(hunt):
    env, batch = hunt
    config = CONFIG | {"am_model": "omg_plus_am", "eta_start": 1.0, "eta_finish": 1.0}
    learner = QLearner4AM(env.spec, BasicMAC(env.spec, config), config, focal=True, artifacts={"vae": vae_of(env)})
    state, seen = jax.jit(learner.init)(KEY), learner.mac.seen(batch)
    inferred = learner.mac.infer_all(state.params, seen, batch)
    condition = learner.condition(state.params, state.target, seen, batch, inferred, jnp.int32(0), KEY)
    assert isinstance(condition.chosen, ChosenOfOthers)
    frozen = learner.target_embedding(state.target, seen, batch, condition)
    used = np.asarray(condition.in_hindsight)[..., 0]
    assert used.any()
    np.testing.assert_array_equal(frozen[used][:, 2:], condition.chosen.subgoal.mu[used])
    np.testing.assert_array_equal(condition.embedding[..., :2], inferred.embedding[..., :2], err_msg="who they are")
    moved = state.params | {"omg_plus_am": jax.tree.map(lambda x: x + 0.1, state.params["omg_plus_am"])}
    inferred = learner.mac.infer_all(moved, seen, batch)
    condition = learner.condition(moved, state.target, seen, batch, inferred, jnp.int32(0), KEY)
    later = learner.target_embedding(state.target, seen, batch, condition)
    np.testing.assert_array_equal(later[..., :2], frozen[..., :2], err_msg="who they are, by the target model")


# --- MeLIBA


def test_melibas_loss(hunt):
    """The others' actions now, their actions some steps later, and both KL terms, step by step."""
    env, batch = hunt
    mac, am, params = model(env, am_model="meliba_am", meliba_beta=0.5, am_loss_coef=2.0)
    net, seen = params["meliba_am"], mac.seen(batch)
    inferred = mac.infer_all(params, seen, batch)
    loss, metrics = jax.jit(am.loss)(params, seen, batch, inferred, None, KEY)
    permanent, temporal = inferred.rest
    k_permanent, k_temporal, k_later = jax.random.split(KEY, 3)
    m, m_t = permanent.sample(k_permanent), temporal.sample(k_temporal)
    now = np.asarray(jax.nn.log_softmax(net.now(jnp.concatenate([m, m_t], -1)).reshape(*m.shape[:3], 2, -1)))
    plain, first = jax.device_get(batch), []
    for t, b, i, j in np.ndindex(len(m), 4, 3, 2):
        if plain.filled[b, t, i] and plain.others_alive[b, t, i, j]:
            first.append(-now[t, b, i, j, plain.others_actions[b, t, i, j]])
    later = later_cross_entropy(net.later, m, batch, k_later)
    at = tuple(np.transpose(steps_taken(batch)))
    permanent_kl = np.asarray(kl(permanent, before(permanent)))[at].mean()
    temporal_kl = np.asarray(kl(temporal, unit_gaussian(temporal)))[at].mean()
    assert len(first) > 5
    np.testing.assert_allclose(metrics["later_loss"], later, rtol=1e-4)
    total = np.mean(first) + later + 0.5 * (permanent_kl + temporal_kl)
    np.testing.assert_allclose(loss, 2 * total, rtol=1e-4)


def test_the_prior_of_a_belief_is_the_belief_before():
    belief = Gaussian(jnp.arange(3.0)[:, None], -jnp.arange(3.0)[:, None])
    np.testing.assert_array_equal(before(belief).mu[:, 0], [0, 0, 1])
    np.testing.assert_array_equal(before(belief).log_var[:, 0], [0, 0, -1])
    at = jnp.arange(3.0)[:, None]
    slope = jax.grad(lambda x: kl(Gaussian(x, x), before(Gaussian(x, x))).sum())(at)
    alone = jax.grad(lambda x: kl(Gaussian(x, x), before(Gaussian(at, at))).sum())(at)
    np.testing.assert_allclose(slope, alone, err_msg="the earlier belief is not pulled to the later one")


# --- the mixture


def test_the_change_ahead_counts_only_where_both_ends_exist():
    obs = jnp.array([0.0, 1.0, 3.0, 6.0])[:, None, None, None]
    there = jnp.array([1.0, 1.0, 0.0, 0.0])[:, None, None]
    shown = jnp.array([1.0, 1.0, 1.0, 0.0])[:, None, None]
    change, both = later(obs, there, shown, 2)
    np.testing.assert_array_equal(change[:, 0, 0, 0], [3, 5, 0, 0])
    np.testing.assert_array_equal(both[:, 0, 0], [1, 0, 0, 0])


def test_returns_are_sums_of_later_rewards_of_mean_zero(hunt):
    _, batch = hunt
    found = np.asarray(returns_of(batch))
    raw, filled = np.asarray(batch.reward * batch.filled), np.asarray(batch.filled) > 0
    to_go = np.flip(np.flip(raw, 1).cumsum(1), 1)
    mean, deviation = to_go[filled].mean(), np.sqrt(to_go[filled].var() + 1e-4)
    np.testing.assert_allclose(
        np.swapaxes(found, 0, 1)[filled], ((to_go - mean) / deviation)[filled], rtol=1e-3, atol=1e-4
    )


def test_the_contrastive_loss_is_a_cross_entropy_among_episodes():
    rows = RIVALS + 3
    z, keys = jax.random.normal(KEY, (2, rows, 1, 3)), jax.random.normal(jax.random.key(1), (2, rows, 1, 3))
    mask = jnp.ones((2, rows, 1)).at[1, 5].set(0.0)
    expected = []
    for t in range(2):
        of = [r for r in range(RIVALS) if mask[t, r, 0]]
        scores = np.asarray(z[t, of, 0] @ keys[t, of, 0].T) / np.sqrt(3)
        expected += list(-np.diag(scores - np.log(np.exp(scores).sum(1, keepdims=True))))
    np.testing.assert_allclose(info_nce(z, keys, mask), np.mean(expected), rtol=1e-5)


def test_the_mixture_is_a_weighted_sum_that_the_policys_loss_trains():
    size, own = 2, 3
    settings = MixAgentSettings(rnn_hidden_dim=4, init="pytorch", mix_embed_dim=size)
    agent = MixRNNAgent(own + PARTS * size, 5, 1, settings, KEY)
    inputs = jax.random.normal(jax.random.key(1), (7, own + PARTS * size))
    weights = jax.nn.softmax(agent.gate(inputs), -1)
    expected = sum(weights[:, i, None] * inputs[:, own + i * size :][:, :size] for i in range(PARTS))
    np.testing.assert_allclose(agent.mixed(inputs), jnp.concatenate([inputs[:, :own], PARTS * expected], -1), rtol=1e-5)
    slope = jax.grad(lambda a: a.step(inputs, jnp.zeros((7, 4)))[0].sum())(agent).gate.weight
    assert float(abs(slope).max()) > 0


def test_the_mixing_agent_needs_the_mixture(hunt):
    with pytest.raises(UserError, match="mix_am"):
        model(hunt[0], policy_model="mix_rnn", am_model="liam_am")


def test_the_choice_is_the_best_candidate_of_the_judge(hunt):
    env, batch = hunt
    mac, am, _ = model(env, am_model="omg_plus_am")
    seen, chosen = mac.seen(batch), hindsight(env, model(env, am_model="omg_plus_am")[1], mac.seen(batch), batch)[0]
    agent = RNNAgent(am.own_size + am.output_size, 5, 3, AgentSettings(4, init="pytorch"), jax.random.key(3))
    judge = Judge(agent, jnp.zeros((*seen.own.shape[:3], 4)), time_first(batch.avail_actions))
    of_states = am.latents(vae_of(env), seen, batch)
    embedding = jnp.full((*seen.own.shape[:3], am.output_size), -5.0)
    values = am.considered(of_states, judge, seen, embedding)
    ahead = choose(values, am.exists(batch), am.settings, KEY)
    there = np.asarray(am.exists(batch).any(0))
    np.testing.assert_array_equal(chosen.ahead[:-1][there], ahead[there])
    # The first candidate, valued by hand: who the others are stays as it was inferred, then comes the change.
    change = of_states.mu[1] - of_states.mu[0]
    inputs = jnp.concatenate([seen.own[0], embedding[0, ..., :2], change], -1)
    q = agent.step(inputs, jnp.zeros((4, 3, 4)))[0]
    available = np.asarray(judge.avail_actions[0])
    by_hand = np.where(available, q, 0).sum(-1) / available.sum(-1)
    np.testing.assert_allclose(values[0, 0], by_hand, rtol=1e-3, atol=1e-5)


def test_the_measures_of_subgoals_do_not_read_who_the_others_are(hunt):
    """Subgoals that are what happens next are hits, whatever stands beside them; unchanged ones are not."""
    env, batch = hunt
    mac, am, _ = model(env, am_model="omg_plus_am", mask_dead=False)
    params, seen, vae = jax.jit(mac.init_params)(KEY), mac.seen(batch), vae_of(env)
    mu = am.latents(vae, seen, batch).mu
    ahead = jnp.concatenate([mu[1:], mu[-1:]]) - mu

    @jax.jit
    def measured(who, goals):
        embedding = jnp.concatenate([jnp.full((*mu.shape[:3], 2), who), goals], -1)
        return Encounter.measure_subgoals(SimpleNamespace(focal=mac, vae=vae), params, seen, embedding, batch, KEY)

    one, other, still = measured(0.0, ahead), measured(7.0, ahead), measured(0.0, 0 * ahead)
    for name in ("subgoal_hit_ratio", "shuffled_hit_ratio"):
        np.testing.assert_array_equal(one[name], other[name])
    assert float(one["subgoal_hit_ratio"].mean()) > 0.8
    assert float(still["subgoal_hit_ratio"].mean()) < 0.2


def test_without_the_second_embedding_the_policy_sees_subgoals_alone(hunt):
    env, _ = hunt
    _, with_who, _ = model(env, am_model="omg_plus_am")
    _, without, params = model(env, am_model="omg_plus_am", who_dim=0)
    assert with_who.output_size == without.output_size + 2 == 2 + 2 * LATENT
    assert params["omg_plus_am"].who is None
    assert params["omg_plus_am"].later is None


def test_omg_plus_refuses_what_it_would_ignore(hunt):
    untrained = {"later_coef": 0.0, "present_coef": 0.0}
    for config in ({"obs_is_state": True}, {"carry_over": True}, untrained):
        with pytest.raises(UserError, match=next(iter(config))):
            model(hunt[0], am_model="omg_plus_am", **config)

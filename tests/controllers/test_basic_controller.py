"""The controller's inputs and policies on small arrays."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers import BasicMAC
from omg.envs import make
from omg.envs.multiagentenv import Spec
from omg.learners import PPOLearner
from omg.modules.entities import Entities
from omg.utils.settings import UserError
from tests.conftest import play
from tests.helpers import or_slow

SPEC = Spec("test", n_agents=2, n_actions=3, obs_size=1, state_size=2, episode_limit=4, game_type="cooperative")


def test_the_input_is_observation_last_action_and_seat():
    """A missing last action (-1) is all zeros."""
    mac = BasicMAC(SPEC, {"rnn_hidden_dim": 4})
    inputs = mac.build_inputs(jnp.array([[[7.0], [8.0]]]), jnp.array([[-1, 2]]))
    np.testing.assert_array_equal(inputs[0], [[7, 0, 0, 0, 1, 0], [8, 0, 0, 1, 0, 1]])
    assert mac.own_size == 6
    swapped = mac.build_inputs(jnp.array([[[7.0], [8.0]]]), jnp.array([[-1, 2]]), jnp.array([1, 0]))
    np.testing.assert_array_equal(swapped[0, :, 4:], [[0, 1], [1, 0]])
    bare = BasicMAC(SPEC, {"obs_last_action": False, "obs_agent_id": False})
    np.testing.assert_array_equal(bare.build_inputs(jnp.array([[[7.0], [8.0]]]), jnp.array([[-1, 2]]))[0], [[7], [8]])


def test_with_obs_relative_the_input_tells_where_everything_is_seen_from_the_agent():
    """Two hunters, a hare and an absent stag: offsets, distance, presence, and offsets in cells up to two."""
    env = make("stag_hunt", grid_size=8, hunters=2, hares=1, stags=1)
    mac = BasicMAC(env.spec, {"obs_relative": True})
    bare = BasicMAC(env.spec, {})
    hunt, _ = env.reset(jax.random.key(0))
    hunt = hunt._replace(
        hunters=jnp.array([[1, 2], [1, 6]]), prey=jnp.array([[4, 1], [5, 5]]), there=jnp.array([True, False])
    )
    _, seen = env.step(hunt, jnp.zeros(2, int), jax.random.key(0))
    obs, last = seen.obs[None], jnp.array([[-1, 0]])
    places = mac.build_inputs(obs, last)[0, :, env.spec.obs_size : env.spec.obs_size + 18].reshape(2, 3, 6) * 8
    np.testing.assert_allclose(places[0, 0], [0, 4, 4, 1, 0, 16])
    np.testing.assert_allclose(places[1, 0], [0, -4, 4, 1, 0, -16])
    np.testing.assert_allclose(places[0, 1], [3, -1, 4, 1, 16, -8])
    np.testing.assert_allclose(places[0, 2], 0)
    assert mac.own_size == bare.own_size + 18
    without = np.delete(np.asarray(mac.build_inputs(obs, last)), np.s_[env.spec.obs_size : env.spec.obs_size + 18], -1)
    np.testing.assert_array_equal(without, bare.build_inputs(obs, last))


def test_players_that_never_leave_are_there_in_every_column():
    env = make("snowdrift", grid_size=4, players=2, drifts=1)
    obs = jnp.zeros(env.spec.obs_size).at[:4].set(jnp.array([0.5, 0.5, 0.75, 0.0]))
    other = Entities(env.spec, others=True).features(obs)[0] * 4
    np.testing.assert_allclose(other, [1, -2, 3, 4, 4, -8])


def test_obs_relative_is_refused_where_the_layout_tells_no_places():
    with pytest.raises(UserError, match=r"obs_relative=true: .* of test does not tell where things are"):
        BasicMAC(SPEC, {"obs_relative": True})


def test_a_policy_is_mixed_with_the_uniform_distribution_over_available_actions():
    mac = BasicMAC(SPEC, {"agent_output_type": "pi_logits"})
    pi = mac.policy(jnp.log(jnp.array([3.0, 1.0, 50.0])), jnp.array([True, True, False]), 0.2)
    np.testing.assert_allclose(pi, [0.8 * 0.75 + 0.1, 0.8 * 0.25 + 0.1, 0.0], rtol=1e-5)


@pytest.mark.parametrize("obs_is_state", [True, False])
def test_s_is_the_global_state_or_the_own_observation(obs_is_state):
    mac = BasicMAC(SPEC, {"am_model": "omg_am", "obs_is_state": obs_is_state, "vae_latent_dim": 2})
    s = mac.s_of(jnp.array([[[7.0], [8.0]]]), jnp.array([[5.0, 6.0]]))
    np.testing.assert_array_equal(s[0], [[5, 6], [5, 6]] if obs_is_state else [[7], [8]])


def test_the_mean_embedding_counts_the_steps_of_a_living_agent():
    mac = BasicMAC(SPEC, {"am_model": "omg_am", "carry_over": True})
    embedding = jnp.array([1.0, 3.0, 100.0])[:, None, None, None]
    mac.seen = lambda batch: None
    mac.infer_all = lambda params, seen, batch: SimpleNamespace(embedding=embedding)
    batch = SimpleNamespace(mask=jnp.array([1.0, 1.0, 0.0])[None, :, None])
    np.testing.assert_array_equal(mac.carried({}, batch), [[[2.0]]])


def test_acting_step_by_step_equals_the_unroll_of_the_episode(foraging):
    """Without exploration the stored actions are the best ones of the unrolled network."""
    episodes = play(foraging, 3, seed=2, epsilon_start=0.0, epsilon_finish=0.0)
    mac = BasicMAC(foraging.spec, {"rnn_hidden_dim": 4})
    q = jax.jit(mac.unroll)(jax.jit(mac.init_params)(jax.random.key(2)), episodes).outputs
    best = jnp.swapaxes(jnp.where(jnp.swapaxes(episodes.avail_actions, 0, 1), q, -jnp.inf).argmax(-1), 0, 1)
    filled = np.asarray(episodes["filled"])
    np.testing.assert_array_equal(np.asarray(episodes.actions)[filled], np.asarray(best)[filled])


@pytest.mark.parametrize(
    ("policy_model", "init"),
    [("rnn", "orthogonal"), ("rnn", "pytorch"), ("duelling_rnn", "orthogonal"), ("idv_rnn", "pytorch")],
)
def test_without_initial_weights_for_the_embedding_a_policy_starts_as_one_without_agent_model(policy_model, init):
    """With another gain the own input's weights stay, and those of the embedding are scaled."""
    spec = Spec("small", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6, game_type="mixed")
    shared = {"policy_model": policy_model, "rnn_hidden_dim": 8, "init": init}
    key = jax.random.key(3)
    base = BasicMAC(spec, shared).new_network(3, key)
    with_model = {gain: BasicMAC(spec, shared | {"am_model": "liam_am", "embedding_gain": gain}) for gain in (0, 0.5)}
    none, half = (mac.new_network(3, key) for mac in with_model.values())
    whole = BasicMAC(spec, shared | {"am_model": "liam_am"}).new_network(3, key)
    own, embedding = jax.random.normal(key, (7, 2, 4 + 3 + 2)), jax.random.normal(key, (7, 2, 32))
    hidden = base.init_hidden(7, 2)
    expected, _ = base.step(own, hidden)
    found, _ = none.step(jnp.concatenate([own, embedding], -1), hidden)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    first = [getattr(network, "seats", network).fc1.weight for network in (half, whole)]
    np.testing.assert_array_equal(first[0][..., 9:, :], 0.5 * first[1][..., 9:, :])
    assert np.abs(first[1][..., 9:, :]).min() > 0
    np.testing.assert_array_equal(first[0][..., :9, :], getattr(base, "seats", base).fc1.weight)


@pytest.mark.parametrize("policy_model", or_slow("rnn", slow=["idv_rnn"]))
def test_the_embeddings_weights_have_a_learning_rate_of_their_own_in_policy_and_critic(policy_model):
    """One step of Adam on the same gradients; all other weights, those of the agent model too, go as far as before."""
    config = {
        "am_model": "liam_am",
        "policy_model": policy_model,
        "rnn_hidden_dim": 4,
        "agent_output_type": "pi_logits",
        "lr": 0.002,
    }
    steps = []
    for rate in (None, 0.0005):
        learner = PPOLearner(SPEC, BasicMAC(SPEC, config | {"embedding_lr": rate}), config)
        params = learner.init_params(jax.random.key(0))
        gradients = jax.tree.map(jnp.cos, params)
        after, _ = learner.step(params, gradients, learner.init_optimiser(params), jnp.int32(0))
        steps.append(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), after, params))
    once, slower = steps
    for name in ("agent", "critic"):
        one, quarter = (getattr(network[name], "seats", network[name]).fc1.weight for network in (once, slower))
        own = learner.mac.own_size
        assert abs(one).min() > 1e-4
        np.testing.assert_array_equal(quarter[..., :own, :], one[..., :own, :])
        np.testing.assert_allclose(quarter[..., own:, :], one[..., own:, :] / 4, rtol=1e-3)
        once[name], slower[name] = (
            [x for x in jax.tree.leaves(network[name]) if x.shape != one.shape] for network in (once, slower)
        )
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(slower), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_central_critic_learns_of_the_embedding_as_fast_and_of_the_state_as_before():
    config = {"am_model": "liam_am", "rnn_hidden_dim": 4, "agent_output_type": "pi_logits", "central_critic": True}
    mac = BasicMAC(SPEC, config | {"embedding_lr": 0.75})
    learner = PPOLearner(SPEC, mac, config)
    ones = jax.tree.map(jnp.ones_like, learner.init_params(jax.random.key(0)))
    rows = mac.weighted(ones, 0.25)["critic"].fc1.weight[:, 0]
    assert rows.tolist() == [1.0] * mac.own_size + [3.0] * mac.am.output_size + [1.0] * SPEC.state_size


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"policy_model": "mix_rnn", "am_model": "mix_am"}, r"policy_model=mix_rnn, set --embedding_gain=null\."),
        ({"policy_model": "rnn", "am_model": "none_am"}, r"Set am_model, or --embedding_gain=null\."),
    ],
)
def test_the_embeddings_weights_can_be_scaled_where_there_are_some(config, problem):
    with pytest.raises(UserError, match=problem):
        BasicMAC(SPEC, config | {"embedding_gain": 0.0})
    both = problem.replace("--embedding_gain=null", "--embedding_gain=null --embedding_lr=null")
    with pytest.raises(UserError, match=both):
        BasicMAC(SPEC, config | {"embedding_gain": 0.0, "embedding_lr": 0.1})

"""OMG's hindsight choice against a plain loop; Gaussians, the VAE's losses and the schedule of η by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omg.envs.multiagentenv import Spec
from omg.modules.agents import AgentSettings, IDVRNNAgent
from omg.modules.agents.rnn_agent import DuellingRNNAgent, RNNAgent
from omg.modules.am import Judge, Seen
from omg.modules.am.omg_am import OMGAM, OMGSettings, candidate_values, candidates, choose, pick_ahead
from omg.modules.vae import VAE, Gaussian, kl, unit_gaussian
from omg.utils.settings import UserError, fill


def filled_for(lengths, time):
    """`[time, batch, 1]`: steps taken by episodes of these lengths."""
    return (jnp.arange(time)[:, None] < jnp.asarray(lengths)).astype(jnp.float32)[..., None]


@given(
    lengths=st.lists(st.integers(1, 7), min_size=2, max_size=2),
    horizon=st.integers(1, 9),
    mode=st.sampled_from(["optimistic", "conservative", "next", "fixed", "random"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_the_hindsight_choice_is_that_of_a_loop_and_never_leaves_the_episode(lengths, horizon, mode, seed):
    time, k = 8, min(2, horizon)
    filled = filled_for(lengths, time)
    values = np.asarray(jax.random.normal(jax.random.key(seed), (horizon, time - 1, 2, 1)))
    exists = np.asarray(candidates(filled, horizon))
    setting = OMGSettings(subgoal_mode=mode, H=horizon, fixed_k=k)
    chosen = np.asarray(choose(jnp.asarray(values), jnp.asarray(exists), setting, jax.random.key(seed)))
    for b, length in enumerate(lengths):
        for t in range(length):
            possible = [j for j in range(1, horizon + 1) if t + j <= length]
            assert [bool(exists[j - 1, t, b, 0]) for j in range(1, horizon + 1)] == [
                j in possible for j in range(1, horizon + 1)
            ]
            value = {j: values[j - 1, t, b, 0] for j in possible}
            expected = {
                "optimistic": [max(value, key=value.get)],
                "conservative": [min(value, key=value.get)],
                "next": [1],
                "fixed": [min(k, len(possible))],
                "random": possible,
            }[mode]
            assert chosen[t, b, 0] in expected
        assert not exists[:, length:, b].any()


@pytest.mark.parametrize("network", [RNNAgent, DuellingRNNAgent, IDVRNNAgent])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_value_of_a_candidate_is_that_of_a_step_conditioned_on_its_latent(network, cell):
    """The products that all candidates share are computed once; the values are the same."""
    own, latent, n, batch, time, horizon, actions = 3, 2, 2, 2, 4, 3, 5
    agent = network(own + latent, actions, n, AgentSettings(4, cell), jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 4)
    inputs = jax.random.normal(keys[0], (time, batch, n, own))
    latents = jax.random.normal(keys[1], (time, batch, n, latent))
    hidden = jax.random.normal(keys[2], (time, *agent.init_hidden(batch, n).shape))
    avail = jax.random.bernoulli(keys[3], 0.7, (time, batch, n, actions)).at[..., 0].set(True)
    values = candidate_values(Judge(agent, hidden, avail), Seen(inputs, inputs), latents, horizon)
    for t in range(time - 1):
        for j in range(1, horizon + 1):
            if t + j < time:
                q = agent.step(jnp.concatenate([inputs[t], latents[t + j]], -1), hidden[t])[0]
                mean = jnp.where(avail[t], q, 0).sum(-1) / avail[t].sum(-1)
                np.testing.assert_allclose(values[j - 1, t], mean, rtol=1e-5, atol=1e-6)


def test_the_chosen_distribution_is_that_of_the_state_ahead():
    mu = jnp.arange(5.0)[:, None, None, None] * jnp.ones((5, 1, 2, 3))
    picked = pick_ahead(Gaussian(mu, -mu), jnp.array([[[1, 3]], [[2, 1]], [[1, 2]], [[1, 1]]]))
    np.testing.assert_array_equal(picked.mu[..., 0, :, 0], [[1, 3], [3, 2], [3, 4], [4, 4]])
    np.testing.assert_array_equal(picked.log_var, -picked.mu)


def test_kl_and_reconstruction_by_hand():
    q = Gaussian(jnp.array([1.0, -2.0]), jnp.log(jnp.array([4.0, 0.25])))
    p = Gaussian(jnp.array([0.0, 1.0]), jnp.log(jnp.array([1.0, 9.0])))
    by_hand = 0.0
    for mq, sq, mp, sp in ((1.0, 2.0, 0.0, 1.0), (-2.0, 0.5, 1.0, 3.0)):
        by_hand += np.log(sp / sq) + (sq**2 + (mq - mp) ** 2) / (2 * sp**2) - 0.5
    np.testing.assert_allclose(kl(q, p), by_hand, rtol=1e-6)
    np.testing.assert_allclose(kl(q, q), 0.0, atol=1e-7)

    vae = VAE(3, 4, 2, jax.random.key(0)).fitted_to(jnp.array([1.0, 0.0, -1.0]), jnp.array([2.0, 0.0, 0.5]))
    s, key = jnp.array([[3.0, 1.0, 0.0]]), jax.random.key(1)
    standard = np.array([[1.0, 1.0, 2.0]])
    np.testing.assert_allclose(vae.standard(s), standard)
    hidden = np.maximum(standard @ vae.encoder.layers[0].weight + vae.encoder.layers[0].bias, 0)
    flat = hidden @ vae.encoder.layers[1].weight + vae.encoder.layers[1].bias
    mu, log_var = flat[:, :2], 8 * np.tanh(flat[:, 2:] / 8)
    g = mu + np.exp(log_var / 2) * np.asarray(jax.random.normal(key, (1, 2)))
    inner = np.maximum(g @ vae.decoder.layers[0].weight + vae.decoder.layers[0].bias, 0)
    decoded = inner @ vae.decoder.layers[1].weight + vae.decoder.layers[1].bias
    recons, divergence = vae.losses(s, key)
    np.testing.assert_allclose(recons, ((decoded - standard) ** 2).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(divergence, 0.5 * (mu**2 + np.exp(log_var) - log_var - 1).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(
        vae.decode(jnp.asarray(g)), np.asarray(decoded) * [2.0, 1.0, 0.5] + [1.0, 0.0, -1.0], rtol=1e-5
    )
    assert kl(unit_gaussian(q), unit_gaussian(q)) == 0


def eta(t_env, n_agents=1, **config):
    spec = Spec("test", n_agents, n_actions=2, obs_size=1, state_size=1, episode_limit=3, game_type="cooperative")
    return float(OMGAM(spec, 1, {"t_max": 1000, **config}).eta(jnp.int32(t_env)))


def test_eta_falls_from_start_to_finish():
    """By default over 30 % of all steps."""
    assert eta(0) == 1.0
    assert eta(150) == pytest.approx(0.5)
    assert eta(300) == eta(999) == 0.0
    given = {"eta_start": 0.8, "eta_finish": 0.2, "eta_anneal_time": 10}
    assert eta(5, n_agents=2, **given) == pytest.approx(0.5)
    assert eta(10**6, **given) == pytest.approx(0.2)


def test_impossible_horizons_are_refused():
    with pytest.raises(UserError, match="H is 0"):
        fill(OMGSettings, {"H": 0})
    with pytest.raises(UserError, match="fixed_k is 9"):
        fill(OMGSettings, {"fixed_k": 9})

"""Policy networks: a step equals the unroll, seats with networks of their own share nothing, the duelling head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.modules.agents import REGISTRY, AgentSettings
from omg.modules.agents.conv_rnn_agent import neighbourhoods
from omg.utils.settings import fill

LAYOUT = (("own", (2,)), ("frame", (3, 3, 2)), ("goal", (1,)))
"""18 of the numbers of an observation are a frame."""


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_steps_while_acting_equal_the_unroll_while_learning(name):
    settings = fill(REGISTRY[name].Settings, {"rnn_hidden_dim": 4, "mix_embed_dim": 1})
    size, layout = (22, LAYOUT) if name == "conv_rnn" else (5, ())
    agent = REGISTRY[name](size, 3, 2, settings, jax.random.key(0), layout)
    inputs = jax.random.normal(jax.random.key(1), (6, 7, 2, size))
    hidden = agent.init_hidden(7, 2)
    outputs, hiddens = agent.unroll(inputs, hidden)
    for t in range(6):
        out, hidden = agent.step(inputs[t], hidden)
        np.testing.assert_allclose(out, outputs[t], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(hidden, hiddens[t], rtol=1e-5, atol=1e-6)


def test_the_gradient_of_one_seat_is_zero_in_the_networks_of_others():
    agent = REGISTRY["idv_rnn"](5, 3, 2, AgentSettings(rnn_hidden_dim=4), jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (6, 7, 2, 5))

    def first_seat(agent):
        return agent.unroll(inputs, agent.init_hidden(7, 2))[0][:, :, 0].sum()

    for gradient in jax.tree.leaves(jax.grad(first_seat)(agent)):
        assert jnp.abs(gradient[0]).sum() > 0
        assert jnp.abs(gradient[1]).sum() == 0


def test_seats_with_networks_of_their_own_start_from_different_weights():
    agent = REGISTRY["idv_rnn"](5, 3, 2, AgentSettings(rnn_hidden_dim=4), jax.random.key(0))
    assert not np.allclose(agent.seats.fc1.weight[0], agent.seats.fc1.weight[1])


def test_the_mean_over_actions_of_the_duelling_head_is_its_value():
    agent = REGISTRY["duelling_rnn"](5, 3, 2, AgentSettings(rnn_hidden_dim=4), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (9, 4))
    np.testing.assert_allclose(agent.fc2(x).mean(-1), agent.fc2.value(x)[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (4, 4)])
def test_a_convolution_is_that_of_jax(size, stride):
    x, weight = (jax.random.normal(jax.random.key(i), s) for i, s in ((0, (5, 7, 9, 2)), (1, (size, size, 2, 6))))
    expected = jax.lax.conv_general_dilated(
        x, weight, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    ours = neighbourhoods(x, size, stride) @ weight.reshape(-1, 6)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_features_replace_the_frame_and_nothing_else():
    settings = fill(REGISTRY["conv_rnn"].Settings, {"conv_channels": 2})
    agent = REGISTRY["conv_rnn"](22, 3, 2, settings, jax.random.key(0), LAYOUT)
    x = jax.random.normal(jax.random.key(1), (4, 22))
    encoded = agent.encode(x)
    assert encoded.shape == (4, 2 + 9 * 4 + 1 + 1)
    np.testing.assert_array_equal(encoded[:, :2], x[:, :2])
    np.testing.assert_array_equal(encoded[:, -2:], x[:, 20:])
    moved = agent.encode(x.at[:, 2:20].add(1.0))
    assert (moved[:, 2:-2] != encoded[:, 2:-2]).any(1).all()


@pytest.mark.slow
def test_subgoals_are_considered_with_features_of_the_frame():
    """What OMG asks of the network for every future subgoal is one step with it."""
    settings = fill(REGISTRY["conv_rnn"].Settings, {"rnn_hidden_dim": 4, "conv_channels": 2})
    agent = REGISTRY["conv_rnn"](22, 3, 1, settings, jax.random.key(0), LAYOUT)
    own, latents = (jax.random.normal(jax.random.key(i), s) for i, s in ((1, (3, 2, 1, 20)), (2, (4, 2, 1, 2))))
    hidden = jax.random.normal(jax.random.key(3), (3, 2, 1, 4))
    ahead = agent.consider(own, latents, hidden, 2)
    for j in range(2):
        out, _ = agent.step(jnp.concatenate([own[: 3 - j], latents[1 + j :]], -1), hidden[: 3 - j])
        np.testing.assert_allclose(ahead[j, : 3 - j], out, rtol=1e-5, atol=1e-6)

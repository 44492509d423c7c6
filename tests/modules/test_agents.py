"""Policy networks: a step equals the unroll, seats with networks of their own share nothing, the duelling head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.modules.agents import REGISTRY, AgentSettings
from omg.utils.settings import fill


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_steps_while_acting_equal_the_unroll_while_learning(name):
    settings = fill(REGISTRY[name].Settings, {"rnn_hidden_dim": 4, "mix_embed_dim": 1})
    agent = REGISTRY[name](5, 3, 2, settings, jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (6, 7, 2, 5))
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

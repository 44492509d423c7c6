"""The GRU against its definition and against finite differences; the LSTM and the affine layers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.layers import GRU, LSTM, MLP, orthogonal


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture(params=["one product per gate", "one product for all gates"], autouse=True)
def products(request, monkeypatch):
    monkeypatch.setattr("omg.components.layers.few_launches", lambda: request.param == "one product for all gates")


@pytest.fixture(scope="module")
def double_precision():
    with jax.enable_x64(True):
        yield


def make(input_size=3, hidden_size=4, time=6, rows=5):
    gru = GRU(input_size, hidden_size, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (time, rows, input_size))
    return gru, x, jax.random.normal(jax.random.key(2), (rows, hidden_size))


def test_unroll_follows_the_definition_step_by_step():
    gru, x, h = make()
    w, b = np.split(np.asarray(gru.input_weight), 3, 1), np.split(np.asarray(gru.input_bias), 3)
    u = [np.asarray(m) for m in gru.recurrent[:3]]
    got, expected = gru.unroll(x, h), np.asarray(h)
    for t in range(len(x)):
        r, z = (sigmoid(x[t] @ w[i] + b[i] + expected @ u[i]) for i in (0, 1))
        n = np.tanh(x[t] @ w[2] + b[2] + r * (expected @ u[2] + np.asarray(gru.recurrent.bias)))
        expected = (1 - z) * n + z * expected
        np.testing.assert_allclose(got[t], expected, rtol=1e-5, atol=1e-6)


def test_a_step_while_acting_equals_the_unroll_while_learning():
    gru, x, h = make()
    hiddens = gru.unroll(x, h)
    for t in range(len(x)):
        h = gru.step(x[t], h)
        np.testing.assert_allclose(h, hiddens[t], rtol=1e-5, atol=1e-6)


def test_the_hand_written_backward_pass_agrees_with_finite_differences(double_precision):
    gru, x, h = jax.tree.map(lambda a: a.astype(jnp.float64), make())
    weights = jax.random.normal(jax.random.key(3), (6, 5, 4), jnp.float64)

    @jax.jit
    def loss(gru, x, h):
        return (gru.unroll(x, h) * weights).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(gru, x, h)
    step = 1e-6
    for which, (value, gradient) in enumerate(zip((gru, x, h), gradients, strict=True)):
        leaves, structure = jax.tree.flatten(value)
        for i, (leaf, expected) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
            direction = jax.random.normal(jax.random.key(10 + i), leaf.shape, leaf.dtype)

            def shifted(sign, i=i, direction=direction, leaves=leaves, structure=structure, which=which):
                moved = [x + sign * step * direction if j == i else x for j, x in enumerate(leaves)]
                arguments = [gru, x, h]
                arguments[which] = jax.tree.unflatten(structure, moved)
                return loss(*arguments)

            numeric = (shifted(1) - shifted(-1)) / (2 * step)
            np.testing.assert_allclose((expected * direction).sum(), numeric, rtol=1e-6, atol=1e-8)


def test_the_lstm_follows_the_definition_step_by_step():
    lstm = LSTM(3, 2, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 5, 3))
    hidden, cell = np.zeros((5, 2)), np.zeros((5, 2))
    carries, carry = lstm.unroll(x, jnp.zeros((5, lstm.carry_size))), jnp.zeros((5, lstm.carry_size))
    for t in range(len(x)):
        gates = np.asarray(x[t]) @ lstm.input_weight + hidden @ lstm.recurrent_weight + lstm.bias
        enter, forget, candidate, out = np.split(np.asarray(gates), 4, -1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
        hidden = sigmoid(out) * np.tanh(cell)
        carry = lstm.step(x[t], carry)
        np.testing.assert_allclose(carries[t], np.concatenate([hidden, cell], -1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(carry, carries[t], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lstm.output(carry), hidden, rtol=1e-5, atol=1e-6)


def test_an_mlp_has_relu_between_its_layers_and_none_at_the_end():
    mlp = MLP((2, 3, 2), jax.random.key(0))
    first, second = mlp.layers
    x = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
    expected = np.maximum(x @ first.weight + first.bias, 0) @ second.weight + second.bias
    np.testing.assert_allclose(mlp(jnp.asarray(x)), expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7)])
def test_orthogonal_matrices(shape):
    """Rows or columns, whichever are fewer, are orthogonal and as long as the gain."""
    for w in orthogonal(jax.random.key(0), (4, *shape), 3.0):
        product = w.T @ w if shape[0] >= shape[1] else w @ w.T
        np.testing.assert_allclose(product, 9 * np.eye(min(shape)), atol=1e-5)


def test_orthogonal_matrices_are_found_by_products_alone():
    """A decomposition by LAPACK waits for the threads of the pool that runs it; two at once blocked for ever."""
    program = jax.jit(lambda key: orthogonal(key, (3, 4, 4))).lower(jax.random.key(0)).as_text()
    assert "dot_general" in program
    assert "custom_call" not in program


def test_the_gates_of_recurrent_layers_start_orthogonal_and_without_bias():
    gru, lstm = GRU(4, 4, jax.random.key(0), orthogonally=True), LSTM(4, 4, jax.random.key(1), orthogonally=True)
    gates = [*jnp.split(gru.input_weight, 3, -1), *gru.recurrent[:3]]
    gates += [*jnp.split(lstm.input_weight, 4, -1), *jnp.split(lstm.recurrent_weight, 4, -1)]
    for i, w in enumerate(gates):
        np.testing.assert_allclose(w.T @ w, np.eye(4), atol=1e-5)
        assert all(abs(w - other).max() > 0.01 for other in gates[i + 1 :]), "no two gates are the same"
    for bias in (gru.input_bias, gru.recurrent.bias, lstm.bias):
        assert not bias.any()

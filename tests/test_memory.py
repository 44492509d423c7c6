"""Memory stays constant: over a thousand episodes in Python, and over a hundred thousand compiled ones."""

import jax
import jax.numpy as jnp
import psutil
import pytest

from omg.build import build
from omg.components.episode_buffer import make_scheme
from omg.controllers import BasicMAC
from omg.envs import make
from omg.runners import REGISTRY
from omg.runners.workers import Recipe
from tests.conftest import TWO_STEP
from tests.helpers import configuration

MIB = 2**20


def resident() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.slow
def test_a_thousand_episodes_in_python_leak_no_memory():
    settings = {"states": TWO_STEP}
    env = make("matrix_game", **settings)
    mac = BasicMAC(env.spec, {"rnn_hidden_dim": 4})
    runner = REGISTRY["episode"](env, mac, *make_scheme(env.spec), 1, Recipe("matrix_game", settings, 1), 60.0)
    params = jax.jit(mac.init_params)(jax.random.key(0))

    def episodes(first: int, last: int) -> None:
        for i in range(first, last):
            runner.run(params, jnp.int32(0), jax.random.fold_in(jax.random.key(1), i), False)

    episodes(0, 250)
    before = resident()
    episodes(250, 850)
    assert resident() - before < 3 * MIB
    runner.close()


@pytest.mark.slow
def test_a_hundred_thousand_compiled_episodes_leak_no_memory():
    board = {"env_args__grid_size": 3, "env_args__hunters": 2, "env_args__hares": 2, "env_args__episode_limit": 4}
    sizes = {"batch_size_run": 1000, "batch_size": 8, "buffer_size": 1000, "test_nepisode": 1000, "rnn_hidden_dim": 4}
    loop = build(configuration("iql", "stag_hunt", **board, **sizes)).loop
    state, _ = loop.run(loop.init(), 0, 5)
    jax.block_until_ready(state)
    before = resident()
    for i in range(10):
        state, totals = loop.run(state, 5000 + 10_000 * i, 10)
    assert int(totals.episodes) == 10_000
    assert resident() - before < 50 * MIB

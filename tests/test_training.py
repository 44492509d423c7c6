"""The compiled loop: compiled once, the same for any split of its iterations, for seeds together or apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.build import build
from omg.learners import REGISTRY as le_REGISTRY
from omg.training.loop import bucket_lengths
from tests.conftest import play
from tests.helpers import configuration, or_slow

SMALL = {"rnn_hidden_dim": 4, "batch_size": 4, "buffer_size": 16, "test_nepisode": 4}
BOARD = {"env_args__grid_size": 5, "env_args__food": 1, "env_args__episode_limit": 12, "length_buckets": 2}


@pytest.fixture(scope="module")
def experiment():
    return build(configuration("iql", "foraging", batch_size_run=2, updates_per_iteration=2, **SMALL, **BOARD))


def same(one, two, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def test_any_split_of_the_iterations_gives_the_same_state_from_one_program(experiment):
    loop = experiment.loop
    one, sums = loop.run(loop.init(), 0, 12)
    state, episode, totals = loop.init(), 0, None
    for iterations in (1, 4, 0, 7):
        state, totals = loop.run(state, episode, iterations, jax.device_get(totals))
        episode += 2 * iterations
        assert totals.episodes == episode
    same(one, state, rtol=0)
    same(sums, totals, rtol=0)
    loop.test(state, 0, 3)
    assert experiment.loop.compiled._cache_size() == 1


def test_a_test_reports_its_collections(experiment):
    loop, reported = experiment.loop, []
    loop.test(loop.init(), 0, 2 * loop.collected + 1, lambda *numbers: reported.append(numbers))
    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_steps_counted_are_steps_taken(experiment):
    state, totals = experiment.loop.run(experiment.loop.init(), 0, 6)
    assert state.t_env == totals.steps == state.replay["filled"].sum()
    # Two episodes a collection: four are there after the second, and every iteration has two updates.
    assert totals.updates == 2 * 5


def test_seeds_together_learn_what_they_learn_alone():
    # A small ε makes a whole step of a gradient that is nothing but rounding: with a larger one weights stay together.
    small = SMALL | {"optim_eps": 1e-3}
    together = build(configuration("qmix", "two_step", seeds=3, seed=5, **small))
    state, _ = together.loop.run(together.loop.init(), 0, 30)
    alone = build(configuration("qmix", "two_step", seed=7, **small))
    own, _ = alone.loop.run(alone.loop.init(), 0, 30)
    same(jax.tree.map(lambda x: x[2], state.learner.params), own.learner.params, rtol=2e-3, atol=2e-4)
    same(jax.tree.map(lambda x: x[2], state.replay), own.replay, rtol=0)


def test_the_loss_of_a_minibatch_is_traced_once():
    experiment = build(configuration("ppo", "two_step", batch_size_run=4, minibatches=2, seeds=2))
    loop, learner, traced = experiment.loop, experiment.loop.learner, []
    loss = learner.total_loss

    def counted(*arguments):
        traced.append(arguments)
        return loss(*arguments)

    learner.total_loss = counted
    loop.compiled = loop.compiled.lower
    loop._call(loop.init(), loop.no_totals(), 0, 1, 0, test=False)
    assert len(traced) == 1


@pytest.mark.slow
def test_a_truncated_sample_gives_the_same_update(experiment, foraging):
    """Time steps after the longest episode change nothing, so they need not be computed."""
    batch, learner = play(foraging, 4, seed=3), experiment.learner
    short = jax.tree.map(lambda x: x.at[:, 6:].set(jnp.zeros((), x.dtype)), batch)
    short.data["terminated"] = short["terminated"].at[:, 5].set(True)
    state = jax.jit(learner.init)(jax.random.key(0))
    now, key = jnp.int32(1), jax.random.key(0)
    train = jax.jit(learner.train)
    whole, _ = train(state, short, now, key)
    truncated, _ = train(state, short.truncate(6), now, key)
    same(whole.params, truncated.params, rtol=1e-5, atol=1e-7)


def test_bucket_lengths_reach_the_limit_and_short_games_need_one():
    assert bucket_lengths(50, 4) == [13, 25, 38, 50]
    assert bucket_lengths(50, 1) == [50]
    assert bucket_lengths(2, 4) == [2]


@pytest.mark.parametrize(
    "alg",
    or_slow(
        "qmix", "coma", slow=["qtran", "ppo_influence", "lola", "iql", "vdn", "iql_idv", "d3qn", "ppo", "ppo_lstm"]
    ),
)
def test_every_algorithm_changes_every_network_it_has(alg):
    """And all numbers stay finite. Whether it learns is tested by `make test-all`."""
    # Influence is about the others' next actions: a game of one step has none.
    env = "two_step" if alg == "ppo_influence" else "climbing"
    sizes = {} if le_REGISTRY[configuration(alg, env)["learner"]].on_policy else SMALL
    experiment = build(configuration(alg, env, **({"rnn_hidden_dim": 4} | sizes)))
    before = jax.device_get(experiment.loop.init().learner.params)
    state, totals = experiment.loop.run(experiment.loop.init(), 0, 6)
    assert int(totals.updates) > 0
    for name, network in jax.device_get(state.learner.params).items():
        leaves, old = jax.tree.leaves(network), jax.tree.leaves(before[name])
        assert all(np.isfinite(x).all() for x in leaves)
        if leaves:
            assert any((a != b).any() for a, b in zip(leaves, old, strict=True)), name

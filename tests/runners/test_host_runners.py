"""Environments in Python: the same episodes as compiled ones, and worker processes that are killed while they play."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.build import StandIns, build
from omg.cli import main
from omg.components.episode_buffer import make_scheme
from omg.controllers import BasicMAC
from omg.controllers.om_controller import TeamPolicies
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make, to_smac
from omg.envs.smac_interface import SMACInterface
from omg.evaluation.encounters import Encounter
from omg.modules.vae import VAE
from omg.opponents import REGISTRY as scripted
from omg.runners import REGISTRY, HostRunner, PolicyGroup, VectorRunner
from omg.runners.workers import EnvLost, Recipe, RemoteEnv
from omg.utils import checkpoints
from omg.utils.settings import UserError
from tests.helpers import configuration, or_slow

MAP = {"map_name": "3m", "episode_limit": 25}


@pytest.fixture(scope="module")
def marines():
    env = make("battle", **MAP)
    mac = BasicMAC(env.spec, {"rnn_hidden_dim": 16})
    return env, mac, mac.init_params(jax.random.key(1))


def scripted_group(env, name: str, place: int) -> PolicyGroup:
    return PolicyGroup(ScriptedMAC(env.spec, scripted["battle"][name](env.spec)), jnp.arange(1), (place,))


def host(name: str, env, mac, envs: int, timeout: float = 60.0) -> HostRunner:
    return REGISTRY[name](env, mac, *make_scheme(env.spec), envs, Recipe("battle", MAP, 1), timeout)


@pytest.fixture(scope="module")
def compiled(marines):
    env, mac, agent = marines
    runner = VectorRunner(env, mac, *make_scheme(env.spec), 2)
    return jax.jit(lambda key: runner.run(agent, jnp.int32(0), key, True))


def same(batch, stats, other, others) -> None:
    np.testing.assert_array_equal(stats.lengths, others.lengths)
    for name, value in batch.data.items():
        if value.dtype in (jnp.float32, jnp.float16):
            tolerance = 1e-5 if value.dtype == jnp.float32 else 1e-3
            np.testing.assert_allclose(
                value.astype(jnp.float32), other[name].astype(jnp.float32), atol=tolerance, err_msg=name
            )
        else:
            np.testing.assert_array_equal(value, other[name], err_msg=name)
    np.testing.assert_allclose(stats.agent_returns, others.agent_returns, atol=1e-4)
    for name, value in stats.info.items():
        np.testing.assert_array_equal(value, others.info[name], err_msg=name)


def test_parallel_environments_play_the_episodes_of_the_compiled_runner(marines, compiled):
    env, mac, agent = marines
    runner = host("parallel", env, mac, 2)
    try:
        for seed in range(3):
            same(*compiled(jax.random.key(seed)), *runner.run(agent, jnp.int32(0), jax.random.key(seed), True))
        assert runner.dropped == 0
    finally:
        runner.close()


def test_one_environment_in_python_plays_them_too(marines):
    env, mac, agent = marines
    runner = host("episode", env, mac, 1)
    alone = VectorRunner(env, mac, *make_scheme(env.spec), 1)
    play = jax.jit(lambda key: alone.run(agent, jnp.int32(0), key, True))
    for seed in range(3):
        same(*play(jax.random.key(seed)), *runner.run(agent, jnp.int32(0), jax.random.key(seed), True))


def test_runner_episode_takes_one_environment(marines):
    env, mac, _ = marines
    with pytest.raises(UserError, match="batch_size_run=1"):
        host("episode", env, mac, 2)


def among_partners(marines, config, runner, envs):
    """One agent on 3m with three partners of two architectures, one of them scripted."""
    env, mac, _ = marines
    networks = jax.vmap(mac.init_params)(jax.random.split(jax.random.key(7)))
    pool = [PolicyGroup(mac, networks, (0, 1)), scripted_group(env, "focus_fire", 2)]
    # OMG+ encodes the places of an agent in the state, OMG the observation.
    encoded = len(env.spec.agents_in_state[0]) if config.endswith("omg_plus") else env.spec.obs_size
    vae = VAE(encoded, 8, 4, jax.random.key(5))
    small = {"rnn_hidden_dim": 16, "pool": "x", "length_buckets": 1}
    small |= {"env_args__map_name": "3m", "env_args__episode_limit": 25}
    if config.startswith("iql"):
        small |= {"batch_size": 2, "buffer_size": 24, "updates_per_iteration": 1}
    if "omg" in config:
        small |= {"vae_latent_dim": 4, "vae_hidden_dim": 8, "cond_rnn_dim": 8}
        small |= {} if config.endswith("plus") else {"cond_fc_dim": 4}
    built = configuration(config, "battle", runner=runner, batch_size_run=envs, test_nepisode=4, **small)
    return build(built, StandIns(pool, {"vae": vae}))


@pytest.mark.parametrize(
    ("name", "config", "envs", "learns"),
    or_slow(
        ("episode", "iql", 1, False),
        slow=[
            ("episode", "iql", 1, True),
            ("parallel", "iql_omg", 2, True),
            *(("episode", f"ppo_{am}", 1, True) for am in ("am", "liam", "omg", "omg_plus", "meliba", "mix", "rl2")),
        ],
    ),
)
def test_one_agent_among_partners_plays_the_same_episodes_in_python(marines, name, config, envs, learns):
    """Fewer environments than episodes: the focal agent sits in one seat after the other."""
    compiled = among_partners(marines, config, "vector", envs)
    in_python = among_partners(marines, config, name, envs)
    assert len(in_python.loop.runner.host.envs) == envs
    params = compiled.learner.acting(compiled.loop.init().learner)
    play = jax.jit(compiled.loop.runner.run, static_argnums=3)
    try:
        met = set()
        for number, test_mode in [(0, True), (1, True), *([(0, False), (3, False)] if learns else [])]:
            arguments = (params, jnp.int32(40_000), jax.random.key(number), test_mode)
            expected = play(*arguments, number=number)
            found = in_python.loop.runner.run(*arguments, number=number)
            same(*expected, *found)
            np.testing.assert_array_equal(found[1].members, expected[1].members)
            np.testing.assert_allclose(found[1].focal_returns, expected[1].focal_returns, atol=1e-4)
            each = envs * in_python.loop.runner.episodes
            np.testing.assert_array_equal(found[0]["agent_idx"][:, 0], np.repeat([0, 1, 2], each))
            met |= set(np.asarray(found[1].members).ravel().tolist())
        if not learns:
            return
        assert 2 in met, "the scripted policy"
        assert met & {0, 1}, "a network"
        state, totals = in_python.loop.run(in_python.loop.init(), 0, 3)
        assert int(totals.updates) >= 2
        assert all(np.isfinite(value) for value in jax.tree.leaves(totals.metrics))
        _, stats = in_python.loop.test(state, 0, 6)
        assert stats.focal_returns.shape == (6,)
    finally:
        in_python.loop.runner.host.close()


@pytest.mark.parametrize(
    ("name", "config", "envs"),
    or_slow(("episode", "ppo_liam", 1), slow=[("parallel", "ppo_liam", 4), ("episode", "ppo_rl2", 1)]),
)
def test_every_member_of_a_pool_gives_the_same_results_in_python(marines, name, config, envs):
    env, mac, _ = marines
    learner = among_partners(marines, config, "vector", 1).learner
    agent = learner.acting(learner.init(jax.random.key(3)))
    networks = jax.vmap(mac.init_params)(jax.random.split(jax.random.key(7)))
    in_python = host(name, env, mac, envs)
    try:
        for group in (PolicyGroup(mac, networks, (0, 1)), scripted_group(env, "focus_fire", 2)):
            heard: list[int] = []
            expected = Encounter(env, learner.mac, group, 3).play(agent, jax.random.key(2))
            encounter = Encounter(env, learner.mac, group, 3, host=in_python)
            found = encounter.play(agent, jax.random.key(2), heard.append)
            assert [result.member for result in found] == list(group.ids)
            assert max(heard) <= envs, "a turn"
            assert sum(heard) == encounter.played == 3 * group.size * (2 if config == "ppo_rl2" else 1)
            for one, other in zip(found, expected, strict=True):
                assert one.numbers == pytest.approx(other.numbers, abs=1e-4)
                assert one.embeddings.shape == (3, learner.mac.am.output_size)
                np.testing.assert_allclose(one.embeddings, other.embeddings, atol=1e-4)
        # More episodes are further rounds, on other maps.
        (longer,) = Encounter(env, learner.mac, group, 6, host=in_python).play(agent, jax.random.key(2))
        assert longer.numbers["focal_return"] != pytest.approx(found[0].numbers["focal_return"], abs=1e-6)
        assert len(longer.embeddings) == 6
    finally:
        in_python.close()


def test_an_episode_that_starts_again_starts_with_an_empty_memory(marines):
    """Rows of a batch are seats × environments; partners are in blocks of them."""
    experiment = among_partners(marines, "iql", "vector", 4)
    lineup = experiment.loop.runner.lineups[0]
    assert lineup.mac.sides[0].blocks == 2
    params = experiment.learner.acting(experiment.loop.init().learner)
    policies = TeamPolicies(params, (experiment.loop.runner.policies[0][0],))
    fresh = lineup.mac.init_memory(policies, 12)
    used = jax.tree.map(lambda x: x + 1, fresh)
    again = np.zeros(12, bool)
    again[[3, 6]] = True
    found = lineup.mac.restarted(jnp.asarray(again), fresh, used)
    for values, start in zip(jax.tree.leaves(found), jax.tree.leaves(fresh), strict=True):
        expected = np.asarray(start).reshape(12, -1) + ~again[:, None]
        np.testing.assert_array_equal(np.asarray(values).reshape(12, -1), expected)


def test_to_smac_has_smacs_methods_and_shapes():
    env = to_smac("battle", 3, map_name="3m")
    info = env.get_env_info()
    assert info == {"state_shape": 48, "obs_shape": 30, "n_actions": 9, "n_agents": 3, "episode_limit": 60}
    obs, state = env.reset()
    assert [o.shape for o in obs] == [(30,)] * 3
    assert state.shape == (48,)
    over, total, steps = False, 0.0, 0
    while not over:
        actions = [max(a for a, ok in enumerate(env.get_avail_agent_actions(i)) if ok) for i in range(3)]
        reward, over, extra = env.step(actions)
        total, steps = total + reward, steps + 1
    assert extra["battle_won"] in (0.0, 1.0)
    assert 0 <= total <= 20.001
    assert steps <= 60
    first = env.reset()[1]
    env.seed(3)
    np.testing.assert_array_equal(env.reset()[1], state)
    assert not np.array_equal(first, state)


def killer(runner: HostRunner, times: int, done: threading.Event) -> int:
    killed = 0
    rng = np.random.default_rng(0)
    while killed < times and not done.is_set():
        time.sleep(0.4)
        process = runner.envs[int(rng.integers(len(runner.envs)))].process
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
    return killed


@pytest.mark.slow
def test_workers_killed_while_they_play_lose_no_complete_episode(marines):
    """Every batch is complete all the same, and the steps counted are those of its episodes."""
    config = configuration(
        "iql", "battle", runner="parallel", batch_size_run=2, batch_size=4, buffer_size=16, rnn_hidden_dim=16,
        t_max=500, test_nepisode=2, length_buckets=1, env_args__map_name="3m", env_args__episode_limit=25,
    )  # fmt: skip
    experiment = build(config)
    runner = experiment.loop.runner
    done = threading.Event()
    thread = threading.Thread(target=killer, args=(runner, 3, done))
    try:
        state, episode, steps = experiment.loop.init(), 0, 0
        experiment.loop.run(experiment.loop.init(), 0, 1)
        thread.start()
        while thread.is_alive() or episode < 12:
            state, totals = experiment.loop.run(state, episode, 1)
            episode += experiment.loop.collected
            steps += int(totals.steps)
        assert runner.dropped >= 2
        assert int(state.t_env) == steps
        kept = min(episode, 16)
        filled, ended = np.asarray(state.replay["filled"])[:kept], np.asarray(state.replay["terminated"])[:kept]
        assert filled[:, 0].all(), "every episode in the buffer has steps"
        lengths = filled.sum(1)
        assert (filled == (np.arange(filled.shape[1]) < lengths[:, None])).all(), "without a gap"
        last = ended[np.arange(kept), lengths - 1]
        assert (last | (lengths == 25)).all(), "to its end"
        assert (ended.sum(1) <= 1).all()
        for value in jax.tree.leaves(state.replay.data):
            assert np.isfinite(np.asarray(value, np.float32)).all()
    finally:
        done.set()
        thread.join()
        runner.close()


def test_an_environment_that_always_fails_ends_the_run_with_the_reason(marines):
    env, mac, agent = marines
    runner = REGISTRY["parallel"](env, mac, *make_scheme(env.spec), 1, Recipe("sc2", {}, 1), 60.0)
    with pytest.raises(UserError, match=r"all environments keep failing.*StarCraft"):
        runner.run(agent, jnp.int32(0), jax.random.key(0), True)


@pytest.mark.slow
def test_the_model_is_saved_before_a_run_ends_because_its_environments_fail(tmp_path, monkeypatch, capsys):
    """An environment that plays some episodes and then always fails."""
    steps, play = 0, SMACInterface.step

    def failing(env, actions):
        nonlocal steps
        steps += 1
        if steps > 150:
            raise ConnectionError("the game is gone")
        return play(env, actions)

    monkeypatch.setattr(SMACInterface, "step", failing)
    words = [
        "train",
        "--config=iql",
        "--env-config=battle",
        "--runner=episode",
        "--batch_size_run=1",
        "--rnn_hidden_dim=16",
        "--batch_size=2",
    ]
    words += ["--t_max=1000", "--test_nepisode=1", "--length_buckets=1", "--use_tensorboard=false", "--buffer_size=16"]
    assert main([*words, f"--run_dir={tmp_path / 'r'}", "with", "env_args.episode_limit=25"]) == 2
    assert "the game is gone" in capsys.readouterr().err
    assert checkpoints.find_model(tmp_path / "r").t_env > 0


def test_an_environment_without_an_answer_is_lost_after_the_timeout():
    env = RemoteEnv(Recipe("battle", MAP, 1), timeout=0.01)
    env.ask(None)
    with pytest.raises(EnvLost, match="no answer"):
        env.hear()
    env.close()


BAD = {
    "seeds": ({"runner": "parallel", "seeds": 2}, "one seed at a time"),
    "a planner": ({"runner": "episode", "mac": "hop_mac"}, "plans in the compiled environment"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_host_runners_cannot_do_is_refused(case):
    updates, says = BAD[case]
    with pytest.raises(UserError, match=says):
        build(configuration("iql", "battle", **updates))


@pytest.mark.parametrize("name", ["sc2", "sc2_beta"])
def test_a_missing_starcraft_is_named(name):
    with pytest.raises(UserError, match="SC2PATH"):
        build(configuration("qmix", name))

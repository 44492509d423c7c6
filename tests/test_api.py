"""The Python API: the same runs, agents and numbers as the command line."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import omg
from omg.cli import main
from omg.commands.common import load_player
from omg.components.episode_buffer import EpisodeBatch, all_agents, make_scheme
from omg.runners import VectorRunner
from omg.utils.checkpoints import find_model
from omg.utils.settings import UserError

SMALL = {
    "t_max": 300, "test_interval": 100, "log_interval": 100, "test_nepisode": 4, "rnn_hidden_dim": 4, "batch_size": 4,
    "batch_size_run": 2, "buffer_size": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "first"
    return omg.train("iql", env="two_step", seeds=2, run_dir=folder, **SMALL)


def test_a_run_has_its_configuration_results_and_points(run):
    assert run.config["seeds"] == 2
    assert run.summary["t_env"] >= 300
    assert len(run.summary["seeds"]) == 2
    assert {"t_env", "seconds", "test_return_mean", "loss"} <= set(run.metrics.columns)
    assert run.metrics.t_env.is_monotonic_increasing


def test_a_loaded_policy_acts_exactly_as_in_an_evaluation(run):
    """Step by step through the API, on the observations of the compiled test: the same actions, for both seeds."""
    saved = find_model(run.path)
    for seed in (0, 1):
        player = omg.load(run.path, seed=seed)
        of_command_line = load_player(saved, player.env)
        runner = VectorRunner(player.env, of_command_line.mac, *make_scheme(player.env.spec), 1)
        played = jax.jit(lambda p, runner=runner: runner.play(p, jnp.int32(0), jax.random.key(3), True))(
            of_command_line.params[seed]
        )
        batch, memory = played.batch, None
        for t in range(int(played.stats.lengths[0])):
            actions, memory = player.act(batch.obs[0, t], memory, avail_actions=batch.avail_actions[0, t])
            np.testing.assert_array_equal(actions, np.asarray(batch.actions[0, t]))


@pytest.mark.slow
def test_a_policy_that_samples_acts_exactly_as_in_an_evaluation(tmp_path):
    """With the keys of the compiled test; without a key, every step has another one."""
    small = {key: value for key, value in SMALL.items() if key not in ("batch_size", "buffer_size")}
    run = omg.train("ppo", env="stag_hunt_game", run_dir=tmp_path / "ppo", env_args={"rounds": 6}, **small)
    player = omg.load(run.path)
    runner = VectorRunner(player.env, player.mac, *make_scheme(player.env.spec), 1)
    keys = []
    select = player.mac.select_actions

    def remember(params, seen, memory, t_env, key, *rest, **more):
        jax.debug.callback(lambda data: keys.append(np.asarray(data)), jax.random.key_data(key), ordered=True)
        return select(params, seen, memory, t_env, key, *rest, **more)

    player.mac.select_actions = remember
    played = jax.jit(lambda p: runner.play(p, jnp.int32(0), jax.random.key(3), True))(player.params)
    jax.effects_barrier()
    player.mac.select_actions = select
    batch, memory = played.batch, None
    for t, data in enumerate(keys[:6]):
        key = jax.random.wrap_key_data(jnp.asarray(data))
        actions, memory = player.act(batch.obs[0, t], memory, avail_actions=batch.avail_actions[0, t], key=key)
        np.testing.assert_array_equal(actions, np.asarray(batch.actions[0, t]))
    many = [player.act(batch.obs[0, 0])[0].tolist() for _ in range(20)]
    assert len({tuple(a) for a in many}) > 1, "an almost uniform policy does not repeat one action"


def test_an_agent_of_the_zoo_acts_alone_in_its_seat():
    """With an agent model: step by step through the API, and along the whole episode as in training."""
    player = omg.load("zoo:prisoners_dilemma/liam")
    played = omg.rollout([player, omg.load("tit_for_tat", env=player.env)], episodes=1, seed=2)
    mac, memory, outputs = player.mac, None, []
    for t in range(4):
        last = None if memory is None else memory._replace(last_actions=jnp.asarray(played.actions[:, t - 1, :1]))
        _, memory = player.act(played.obs[0, t, :1], last)
        outputs.append(np.asarray(memory.hidden[0, 0]))
    batch = EpisodeBatch.zeros(*make_scheme(player.env.spec), 1, 5).with_fields(
        obs=jnp.asarray(played.obs[:, :5]), actions=jnp.asarray(played.actions[:, :5], jnp.int8)
    )
    focal = all_agents(batch, 2)
    seen = mac.seen(focal)
    whole = mac.unroll_on(player.params["agent"], seen, mac.infer_all(player.params, seen, focal).embedding)
    np.testing.assert_allclose(np.stack(outputs), whole.hidden[:4, 0, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_pool_and_a_vae_are_made_from_python(tmp_path):
    """The example of the documentation: OMG needs both before it learns."""
    where = {"local_results_path": tmp_path, "env_args": {"grid_size": 5, "food": 1, "episode_limit": 6}}
    sizes = {"batch_size": 4, "batch_size_run": 2, "buffer_size": 16, "rnn_hidden_dim": 4}
    pool = omg.pool("foraging", pool_algs=["iql"], pool_test_algs=[], pool_test_seeds=0, pool_stages=[1.0], t_max=24,
                    pool_rules=[], pool_test_rules=[], test_nepisode=2, **where, **sizes)  # fmt: skip
    assert (pool / "pool.json").exists()
    vae = omg.pretrain("iql_omg", "foraging", vae_updates=2, vae_episodes=2, pool=pool, **where)
    assert (vae / "checkpoints").is_dir()
    run = omg.train("iql_omg", "foraging", pool=pool, vae_path=vae, t_max=24, test_nepisode=2, **where, **sizes)
    assert run.summary["t_env"] >= 24


def test_the_evaluation_is_that_of_the_command_line(run, tmp_path, capsys):
    found = omg.evaluate(run.path, test_nepisode=8)
    assert main(["evaluate", f"--checkpoint_path={run.path}", "--test_nepisode=8", f"--run_dir={tmp_path}"]) == 0
    assert found == json.loads((tmp_path / "summary.json").read_text())
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path)


def test_a_rollout_returns_whole_episodes(run):
    player = run.player()
    episodes = omg.rollout(player, episodes=3, seed=5)
    n = player.env.spec.n_agents
    steps = episodes.actions.shape[1]
    assert episodes.obs.shape == (3, steps + 1, n, player.env.spec.obs_size)
    np.testing.assert_allclose((episodes.reward * episodes.filled[..., None]).sum(1), episodes.returns, rtol=1e-5)
    again = omg.rollout(player, episodes=3, seed=5)
    np.testing.assert_array_equal(again.actions, episodes.actions)


def test_players_in_every_seat_act_by_their_own_policies():
    """Tit-for-tat repeats what the defector did; both are scripted policies."""
    env = omg.make_env("prisoners_dilemma", rounds=5)
    players = [omg.load("always_defect", env=env), omg.load("tit_for_tat", env="prisoners_dilemma")]
    episodes = omg.rollout(players, env, episodes=3)
    assert (episodes.actions[..., 0] == 1).all()
    np.testing.assert_array_equal(episodes.actions[:, :, 1], [[0, 1, 1, 1, 1]] * 3)
    with pytest.raises(UserError, match="2 agents; 3 players"):
        omg.rollout([*players, players[0]], env)


def test_an_environment_by_the_name_of_its_configuration_has_its_settings():
    assert omg.make_env("prisoners_dilemma", rounds=7).spec.episode_limit == 7
    assert omg.make_env("foraging", grid_size=10).settings.grid_size == 10


def test_runs_are_a_table(run):
    table = omg.runs(run.path.parent)
    assert list(table.name) == ["iql"]
    row = table.iloc[0]
    assert (row.env, row.seeds, row.state) == ("two_step", 2, "finished")
    assert row.test_return == pytest.approx(run.summary["test_return_mean"])
    assert row.seconds == pytest.approx(run.summary["wall_seconds"])


def test_a_run_draws_its_curve(run, tmp_path):
    assert run.plot(to=tmp_path / "curve.svg").read_text().startswith("<?xml")
    assert run.plot(to=tmp_path / "curve.png")._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: omg.train("iqll"), "Did you mean"),
        (lambda path: omg.train("iql", t_mx=3), "Did you mean"),
        (lambda path: omg.load(path / "nothing"), "nothing"),
        (lambda path: omg.load(path, seed=2), "2 seeds"),
        (lambda path: omg.load(path).act(np.zeros((1, 3))), "obs has the shape"),
        (lambda path: omg.Run(path.parent).summary, "not finished"),
        (lambda path: omg.Run(str(path.parent)).summary, "not finished"),
        (lambda path: omg.train("iql", env="two_step", resume=True), "run_dir"),
        (lambda path: omg.rollout(omg.load(path), "foraging"), "Leave env out"),
        (lambda path: omg.rollout(omg.load(path), episodes=0), "1 or more"),
        (lambda path: omg.rollout([]), "every seat"),
        (lambda path: omg.load(path).act(np.zeros((1, 3)), seats=[7]), "has the seats 0 to 1"),
        (lambda path: omg.Run(path).plot("lss"), "Did you mean"),
    ],
)
def test_a_mistake_is_one_sentence(run, call, said):
    with pytest.raises(UserError, match=said):
        call(run.path)


def test_the_command_line_starts_without_the_api():
    import subprocess
    import sys

    code = "import sys, omg; assert 'omg.api' not in sys.modules; assert 'jax' not in sys.modules; omg.train"
    subprocess.run([sys.executable, "-c", code + "; assert 'omg.api' in sys.modules"], check=True, timeout=120)
    with pytest.raises(AttributeError):
        _ = omg.nonsense

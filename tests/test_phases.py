"""Phases: a list in YAML is carried out in order, stops anywhere, and goes on there."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from omg import config as configuration
from omg.cli import main
from omg.goal_learning import Trajectories, choose_goals, moments
from omg.phases import check, read, run_phases, stages_of
from omg.utils.settings import UserError

SMALL = {"seed": 1, "env_args.grid_size": 4, "env_args.hunters": 2, "env_args.hares": 2, "env_args.episode_limit": 6}
TINY = {
    "env_config": "stag_hunt",
    "settings": SMALL,
    "phases": [
        {"collect": "rules", "vae_episodes": 16},
        {"pretrain": "hop_plus", "trajectories": "{collect_rules}", "vae_updates": 40, "n_goal_clusters": 4,
         "vae_hidden_dim": 8, "goal_latent_dim": 2},
        {"train": "ppo", "t_max": 60, "batch_size_run": 4, "batch_size": 4, "buffer_size": 4, "test_nepisode": 4,
         "rnn_hidden_dim": 4},
        {"train": "hop_plus", "goals_path": "{pretrain_hop_plus}", "pool": "{train_ppo}", "t_max": 20,
         "batch_size_run": 2, "batch_size": 2, "buffer_size": 16,
         "test_nepisode": 2, "n_goal_clusters": 4, "vae_hidden_dim": 8, "goal_latent_dim": 2, "hop_hidden_dim": 8,
         "simulations": 4, "goal_draws": 1, "train_simulations": 4, "train_goal_draws": 1, "updates_per_iteration": 1},
        {"adapt": "train_hop_plus", "pool": "rules", "adapt_episodes": 2, "test_nepisode": 2},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("phases") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def done(plan, tmp_path_factory):
    """Stopped by Ctrl-C while PPO is about to train, and gone on with."""
    folder = tmp_path_factory.mktemp("run")
    words = ["phases", str(plan), f"--run_dir={folder}"]
    first = subprocess.Popen([sys.executable, "-m", "omg", *words], stderr=subprocess.PIPE, text=True)
    while not (folder / "3_train_ppo" / "config.yaml").exists():
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 130, said
    assert f"omg phases {plan} --run_dir={folder}" in said, "what to type to go on"
    assert not (folder / "3_train_ppo" / "summary.json").exists()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("[12]_*/*")}
    assert main(words) == 0
    assert all(path.stat().st_mtime_ns == at for path, at in before.items()), "what was done is not done again"
    return folder


def test_all_phases_are_carried_out(done):
    assert (done / "1_collect_rules" / "trajectories.npz").exists()
    assert (done / "2_pretrain_hop_plus" / "goals.png").stat().st_size > 1000
    assert json.loads((done / "3_train_ppo" / "summary.json").read_text())["t_env"] >= 60
    assert (done / "4_train_hop_plus" / "checkpoints").is_dir()
    met = json.loads((done / "5_adapt_train_hop_plus" / "summary.json").read_text())
    assert set(met) == {"nearest_prey", "random", "tit_for_tat", "switcher"}
    assert 0 <= met["random"]["action accuracy"]["mean"] <= 1
    assert (done / "5_adapt_train_hop_plus" / "adaptation.png").stat().st_size > 1000


def test_a_second_call_does_nothing(done, plan, capsys):
    assert main(["phases", str(plan), f"--run_dir={done}"]) == 0
    assert "[1/5]" not in capsys.readouterr().err


def test_the_model_brings_its_goals_along(done, capsys):
    (done / "2_pretrain_hop_plus").rename(done / "elsewhere")
    try:
        words = [f"--checkpoint_path={done / '4_train_hop_plus'}", "--test_nepisode=2", "--pool=rules"]
        assert main(["adapt", *words, "--adapt_episodes=1", "--save_replay"]) == 0
        assert list((done / "4_train_hop_plus" / "adaptation").glob("*/replay.gif"))
        assert main(["adapt", *words, "--told"]) == 2, "learned goals are not the world's"
        assert "world's own goals" in capsys.readouterr().err
    finally:
        (done / "elsewhere").rename(done / "2_pretrain_hop_plus")


@pytest.mark.parametrize("phase", range(5))
def test_ctrl_c_in_any_phase_is_gone_on_from(plan, tmp_path, phase):
    ran = []

    def run(words, stop_at):
        ran.append(words[0])
        if len(ran) - 1 == stop_at:
            raise KeyboardInterrupt
        stage = stages[len(ran) - 1]
        stage.mark.parent.mkdir(parents=True, exist_ok=True)
        stage.mark.write_text("done")
        return 0

    stages = stages_of(read(str(plan)), tmp_path / "run")
    verbs = [stage.words[0] for stage in stages]
    assert run_phases(str(plan), tmp_path / "run", lambda words: run(words, phase)) == 130
    assert ran == verbs[: phase + 1]
    stages, ran[:] = stages[phase:], []
    assert run_phases(str(plan), tmp_path / "run", lambda words: run(words, -1)) == 0
    assert ran == verbs[phase:], "from where it was stopped, and not again what was done"


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"phases": []}, "no phases"),
        ({"phases": [{"trane": "ppo"}]}, "train"),
        ({"phases": ["train"]}, "mapping"),
        ({"phases": [{"adapt": "train_ppo"}]}, "earlier phase"),
        ({"phases": [{"train": "ppo"}, {"train": "ppo"}]}, "name of its own"),
        ({"phases": [{"train": "hop_plus", "goals_path": "{pretrain}"}]}, "not there before"),
        ({"fases": []}, "phases"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(tmp_path, change, hint):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"phases": [{"train": "ppo"}], **change}, sort_keys=False))
    with pytest.raises(UserError, match=hint):
        stages_of(read(str(path)), tmp_path)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--co_players=[]", "always_stag"),
        ("--test_nepisode=many", "test_nepisode takes"),
        ("--seed=soon", "seed takes"),
        ("--run_dir=5", "run_dir takes"),
        ("--adapt_episodes=0", "1 or more"),
        ("--pool={}/4_train_hop_plus", "neither plan nor model"),
        ("--pool={}/nowhere", "omg pool"),
    ],
)
def test_what_is_wrong_with_a_meeting_is_said(done, word, hint, capsys):
    assert main(["adapt", f"--checkpoint_path={done / '4_train_hop_plus'}", word.format(done)]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(configuration.available("phases")))
def test_shipped_lists_are_sound(name, tmp_path):
    """Every phase's settings are known, and the phases it builds on come before it."""
    stages = stages_of(read(name), tmp_path)
    assert len(stages) >= 5
    check(stages)


def test_phases_share_settings(tmp_path):
    path = tmp_path / "shared.yaml"
    path.write_text(
        "phases:\n- train: iql\n  with: &short {t_max: 100, lr: 0.1}\n- train: vdn\n  with: *short\n  lr: 0.2\n"
    )
    first, second = stages_of(read(str(path)), tmp_path)
    assert {"--t_max=100", "--lr=0.1"} <= set(first.words)
    assert {"--t_max=100", "--lr=0.2"} <= set(second.words), "a phase's own settings come first"
    assert not any(word.startswith("--with") for word in first.words)


def test_moments_are_cut_where_reward_comes():
    obs = np.arange(2 * 4 * 1 * 3, dtype=np.float32).reshape(2, 4, 1, 3)
    reward = np.zeros((2, 4, 1), np.float32)
    reward[0, 2], reward[1, 0], reward[1, 3] = 5, 1, 7
    playing = np.ones((2, 4, 1), bool)
    playing[1, 3] = False
    played = Trajectories(obs, reward, playing)
    rows, earned = moments(played, "state", 1, 4)
    np.testing.assert_array_equal(rows, [obs[0, 2, 0], obs[1, 0, 0]])
    np.testing.assert_array_equal(earned, [5, 1])
    rows, _ = moments(played, "state_time_reward", 1, 4)
    np.testing.assert_array_equal(rows[0], [*obs[0, 2, 0], 0.5, 5])
    rows, _ = moments(played, "trajectory", 3, 4)
    np.testing.assert_array_equal(rows[0], obs[0, :3, 0].ravel())
    np.testing.assert_array_equal(rows[1], [*np.zeros(6), *obs[1, 0, 0]])


def test_clusters_are_found_and_moments_kept():
    import jax

    rng = np.random.default_rng(0)
    latents = np.concatenate([rng.normal(c, 0.1, (50, 2)) for c in ((0, 0), (5, 0), (0, 5))]).astype(np.float32)
    found = np.asarray(choose_goals(latents, 3, "clustered", jax.random.key(1)))
    for centre in ((0, 0), (5, 0), (0, 5)):
        assert np.abs(found - centre).sum(-1).min() < 0.2
    kept = np.asarray(choose_goals(latents, 3, "continuous", jax.random.key(1)))
    assert all((latents == row).all(-1).any() for row in kept)


def test_a_mistake_in_a_later_phase_is_said_first_and_can_be_mended(tmp_path):
    """Nothing has run, and the corrected list may use the same folder."""
    folder, path = tmp_path / "run", tmp_path / "plan.yaml"
    done = []

    def run(words):
        done.append(words[0])
        home = next(w.removeprefix("--run_dir=") for w in words if w.startswith("--run_dir="))
        (tmp_path / home).mkdir(parents=True)
        (tmp_path / home / "summary.json").write_text("{}")
        return 0

    def carry_out(*phases):
        path.write_text(yaml.safe_dump({"phases": list(phases)}, sort_keys=False))
        return run_phases(str(path), folder, run)

    for wrong in ({"train": "vnd"}, {"train": "vdn", "t_mx": 3}, {"adapt": "train_iql", "adapt_episode": 3}):
        with pytest.raises(UserError, match=r"in phase .*Did you mean"):
            carry_out({"train": "iql"}, wrong)
    assert not done
    assert carry_out({"train": "iql"}, {"train": "vdn"}) == 0
    assert carry_out({"train": "iql"}, {"train": "vdn"}, "adapt") == 0
    assert done == ["train", "train", "adapt"]
    with pytest.raises(UserError, match=r"done otherwise .train_iql.*another --run_dir"):
        carry_out({"train": "iql", "lr": 0.1}, {"train": "vdn"})
    (folder / "phases.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        carry_out({"train": "iql"})


def test_the_shortest_list(tmp_path):
    """The one in the documentation."""
    page = Path(__file__).parent.parent / "docs" / "hop.md"
    path = tmp_path / "plan.yaml"
    path.write_text(page.read_text().split("```yaml\n")[1].split("```")[0])
    stages = stages_of(read(str(path)), tmp_path)
    check(stages)
    assert "--config=hop_plus" in stages[1].words
    assert f"--pool={tmp_path / '3_train_ppo'}" in stages[3].words
    assert f"--checkpoint_path={tmp_path / '4_train_hop'}" in stages[-1].words
    with pytest.raises(UserError, match="before anything is trained"):
        stages_of({"phases": ["adapt"]}, tmp_path)

"""All commands in order on a small board: pool, VAE, one agent with partners, unseen partners, crossplay, a replay."""

import csv
import json

import pytest
from PIL import Image

from omg.cli import main
from omg.opponents.pool import Pool
from omg.utils import checkpoints
from tests.helpers import interrupt_at

BOARD = ["with", "env_args.grid_size=5", "env_args.food=1", "env_args.episode_limit=8"]
SMALL = [
    "--env-config=foraging", "--rnn_hidden_dim=8", "--use_tensorboard=false", "--length_buckets=1", "--batch_size=4",
    "--test_nepisode=4",
]  # fmt: skip
VAE = ["--vae_latent_dim=4", "--vae_hidden_dim=8"]
OMG = [*VAE, "--cond_rnn_dim=6", "--cond_fc_dim=4"]
POOL = "pools/foraging__episode_limit=8__food=1__grid_size=5"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The results folder: a pool of two trained networks and two scripted policies, a VAE, and a trained agent."""
    folder = tmp_path_factory.mktemp("partners")
    small = [*SMALL, f"--local_results_path={folder}"]
    pool = ["pool", *small, "--t_max=64", "--pool_algs=[iql]", "--pool_test_algs=[]", "--pool_test_seeds=1"]
    pool += ["--pool_stages=[1.0]", "--pool_rules=[nearest_food]", "--pool_test_rules=[slow]", *BOARD]
    assert main(pool) == 0
    kept = (folder / POOL / "pool.json").read_text()
    # A second call trains nothing.
    assert main(pool) == 0
    assert (folder / POOL / "pool.json").read_text() == kept
    assert main(["pretrain", "--config=iql_omg", *small, *VAE, "--vae_updates=40", "--vae_episodes=4", *BOARD]) == 0
    words = ["train", "--config=iql_omg", *small, *OMG, "--t_max=100", f"--run_dir={folder / 'omg'}", "--save_replay"]
    assert main([*words, "--save_model_interval=100", *BOARD]) == 0
    return folder


def test_the_pool_has_the_members_that_were_asked_for(home, capsys):
    pool = Pool.load(home / POOL)
    assert [(m.name, m.split) for m in pool.members] == [
        ("nearest_food", "train"), ("slow", "non_homologue"), ("iql-1-64", "train"), ("iql-2-64", "homologue"),
    ]  # fmt: skip
    assert main(["pool", "show", "--env-config=foraging", f"--local_results_path={home}", *BOARD]) == 0
    assert "train: 2 members, mean pairwise disagreement" in capsys.readouterr().out


def test_pretraining_writes_curve_and_reconstructions(home):
    (vae,) = (home / "vaes").iterdir()
    assert {"curve.json", "curve.png", "reconstructions.png", "summary.json"} <= {p.name for p in vae.iterdir()}


def test_steps_count_for_every_seat(home):
    summary = json.loads((home / "omg/summary.json").read_text())
    assert summary["t_env"] >= 200
    assert summary["updates"] > 0


@pytest.mark.slow
def test_a_resumed_run_with_partners_reaches_the_same_networks(home, tmp_path, monkeypatch):
    """With opponents and subgoals: an interrupted and resumed run equals the undisturbed run exactly."""
    words = ["train", "--config=iql_omg", *SMALL, *OMG, f"--local_results_path={home}", "--eta_anneal_time=150"]
    words += ["--optimiser=adam"]
    words += ["--t_max=100"]
    assert main([*words, f"--run_dir={tmp_path / 'whole'}", *BOARD]) == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, 100)
        assert main([*words, f"--run_dir={tmp_path / 'halves'}", *BOARD]) == 130
    assert 100 <= checkpoints.find(tmp_path / "halves").t_env < 200
    assert main(["train", "--resume", f"--run_dir={tmp_path / 'halves'}"]) == 0
    whole, halves = (checkpoints.find(tmp_path / folder) for folder in ("whole", "halves"))
    assert whole.t_env == halves.t_env
    for name in ("agent", "cvae", "cond_rnn", "fc", "opt", "replay"):
        assert whole.manifest["files"][f"{name}.safetensors"] == halves.manifest["files"][f"{name}.safetensors"], name


def test_the_replay_shows_inferred_and_chosen_subgoals(home):
    with Image.open(home / "omg/replay.gif") as gif:
        width, height = gif.size
    assert width > 2.5 * (height - 4 * 18)


def test_evaluation_reports_every_member_of_the_pool(home, capsys):
    words = ["evaluate", f"--checkpoint_path={home / 'omg'}", f"--pool={home / POOL}", "--test_nepisode=4"]
    assert main([*words, f"--run_dir={home / 'partners'}"]) == 0
    names = {p.name for p in (home / "partners").iterdir()}
    assert {"opponents.csv", "opponents.png", "embeddings.png", "partners.json", "summary.json"} <= names
    with (home / "partners/opponents.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["member"] for row in rows] == ["nearest_food", "slow", "iql-1-64", "iql-2-64"]
    result = json.loads((home / "partners/partners.json").read_text())
    assert set(result) == {"train", "homologue", "non_homologue", "unseen"}
    unseen = [float(row["return"]) for row in rows if row["split"] != "train"]
    assert result["unseen"]["return"]["mean"] == pytest.approx(sum(unseen) / 2, abs=1e-5)


@pytest.mark.slow
def test_a_scripted_policy_is_tested_in_the_seat_of_the_agent(home):
    """The bound that trained agents are compared with: it earns more than a slow policy with the same partners."""
    earned = {}
    for policy in ("nearest_food", "slow"):
        folder = home / f"as_{policy}"
        words = ["evaluate", policy, f"--pool={home / POOL}", "--test_nepisode=40", f"--run_dir={folder}"]
        assert main([*words, *BOARD]) == 0
        earned[policy] = json.loads((folder / "partners.json").read_text())["unseen"]["focal_return"]["mean"]
    assert earned["nearest_food"] > earned["slow"] + 0.1


@pytest.mark.slow
def test_crossplay_pairs_all_agents(home):
    words = ["crossplay", str(home / "omg"), "slow", "--test_nepisode=4", f"--run_dir={home / 'cross'}"]
    assert main(words) == 0
    lines = (home / "cross/crossplay.csv").read_text().splitlines()
    assert lines[0] == "agent,iql_omg,slow"
    assert len(lines) == 3
    assert (home / "cross/crossplay.png").exists()

"""Melting Pot through Shimmy, on a stand-in with the same interface: frames in, episodes and learning out."""

import json
import sys

import numpy as np
import pytest

from omg.cli import main
from omg.envs import make
from omg.envs.melting_pot import open_melting_pot
from omg.envs.pettingzoo_adapter import shrunk
from omg.runners.workers import reset
from omg.utils.settings import UserError

SUBSTRATE = {"substrate": "bright_cell", "episode_limit": 5}
STAND_IN = "tests.envs.substrates"


@pytest.fixture
def stand_in():
    """The stand-ins, fresh for every test and gone after it."""
    names = ("shimmy", "meltingpot", STAND_IN)
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    __import__(STAND_IN)
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_frames_are_shrunk_to_the_means_of_blocks():
    pixels = np.zeros((4, 5, 1), np.uint8)
    pixels[:2, :2, 0] = [[0, 255], [255, 0]]
    pixels[:, 4] = 51
    assert shrunk(pixels, 2)[..., 0].tolist() == [[0.5, 0, pytest.approx(0.2)], [0, 0, pytest.approx(0.2)]]
    np.testing.assert_allclose(shrunk(pixels, 1) * 255, pixels)


def test_an_agent_sees_its_frame_and_numbers_but_not_the_sum_of_rewards(stand_in):
    spec = make("melting_pot", **SUBSTRATE).spec
    assert spec.obs_layout == (("RGB", (3, 3, 3)), ("READY_TO_SHOOT", ()))
    assert (spec.obs_size, spec.state_size, spec.n_actions, spec.episode_limit) == (28, 3 * 6 * 3, 4, 5)
    game = open_melting_pot(SUBSTRATE, 0)
    game.reset()
    for player, obs in enumerate(game.get_obs()):
        frame = obs[:27].reshape(3, 3, 3)
        assert np.argmax(frame[1, :, 0]) == game.game.column
        assert frame.max() == 1
        assert frame.min() == pytest.approx(0.2)
        assert obs[27] == player
    np.testing.assert_array_equal(game.get_state().reshape(3, 6, 3)[:, :3], frame)


def test_an_episode_ends_at_the_limit_with_each_players_rewards(stand_in):
    game = open_melting_pot(SUBSTRATE, 0)
    game.reset()
    for step in range(5):
        column = game.game.column
        reward, ended, info = game.step([column, (column + 1) % 3])
        assert (reward, ended) == (1, step == 4)
        assert info["agent_rewards"].tolist() == [1, 0]
    assert info["episode_limit"]


def test_an_episode_begins_with_what_is_seen_in_it(stand_in):
    """As the runners reset an environment: frame and global state show the same bright cell."""
    game = open_melting_pot(SUBSTRATE, 0)
    for _ in range(5):
        shown = reset(game, None)
        np.testing.assert_array_equal(shown.state.reshape(3, 6, 3)[:, :3], shown.obs[0, :27].reshape(3, 3, 3))


def test_what_is_missing_is_said(stand_in, monkeypatch):
    with pytest.raises(UserError, match=r"no substrate 'coin'. Did you mean 'coins'.*bright_cell, coins"):
        make("melting_pot", substrate="coin")
    for shrink in (0, 25):
        with pytest.raises(UserError, match="shrink takes a number from 1 to 24"):
            make("melting_pot", **SUBSTRATE, shrink=shrink)
    with pytest.raises(UserError, match="episode_limit"):
        make("melting_pot", substrate="coins", episode_limit=0)
    monkeypatch.delattr(sys.modules["shimmy"], "MeltingPotCompatibilityV0")
    with pytest.raises(UserError, match=r"this version of Shimmy cannot open Melting Pot.*shimmy<2.1"):
        make("melting_pot", **SUBSTRATE)
    monkeypatch.setitem(sys.modules, "meltingpot", None)
    with pytest.raises(UserError, match=r"pip install .shimmy<2.1. dm-meltingpot"):
        make("melting_pot", **SUBSTRATE)


@pytest.mark.slow
def test_ppo_learns_from_frames(tmp_path, stand_in, capsys):
    """Each of two environments runs in its own process, where the stand-in is imported, too."""
    words = [
        "train", f"--import={STAND_IN}", "--config=ppo", "--env-config=melting_pot", "--t_max=3000", "--seed=1",
        "--runner=parallel", "--batch_size_run=2", "--rnn_hidden_dim=16", "--conv_channels=4", "--epochs=8",
        "--lr=0.005", "--test_nepisode=8", "--test_interval=3000", f"--run_dir={tmp_path}/run",
        "with", "env_args.substrate=bright_cell", "env_args.episode_limit=25",
    ]  # fmt: skip
    assert main(words) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_return_mean"] > 40, "chance gives 50 / 3"


def test_policies_for_frames_refuse_environments_without_them(capsys):
    assert main(["train", "--config=iql", "--env-config=foraging", "--policy_model=conv_rnn", "--t_max=10"]) == 2
    assert "observations of foraging have none: use policy_model=rnn" in capsys.readouterr().err

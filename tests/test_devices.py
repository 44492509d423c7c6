"""One run on several devices: eight simulated ones on the CPU, in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from omg.training.devices import mesh_of
from omg.utils import checkpoints
from omg.utils.settings import UserError

ROOT = Path(__file__).parents[1]

SMALL = ["--batch_size_run=8", "--rnn_hidden_dim=8", "--test_interval=1000000", "--test_nepisode=8"]


def omg(folder, *words, devices=1, status=0):
    """A command in a process with so many simulated devices; its run folder."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags}
    command = [sys.executable, "-m", "omg", *words, f"--run_dir={folder}", "--use_tensorboard=false"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr + done.stdout
    return folder


def networks(folder, step=0):
    found = checkpoints.find(folder, step)
    return {
        f"{file}/{name}": x
        for file in sorted(found.manifest["files"])
        for name, x in load_file(found.file(file)).items()
    }


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    words = ["train", "--config=ppo", "--env-config=two_step", *SMALL, "--t_max=96", "--save_model_interval=32"]
    words += ["--keep_checkpoints=9", "--seeds=8", "--devices=all"]
    return omg(tmp_path_factory.mktemp("devices") / "spread", *words, devices=8), words


@pytest.mark.slow
def test_eight_seeds_on_eight_devices_are_eight_single_runs_bit_for_bit(spread, tmp_path):
    folder, words = spread
    together = networks(folder)
    for seed in (1, 6):
        alone = networks(omg(tmp_path / str(seed), *words[:-2], f"--seed={seed}"))
        for name, x in alone.items():
            np.testing.assert_array_equal(together[name][seed - 1], x, err_msg=name)
    returns = [point["test_return_mean_seeds"] for point in metrics(folder) if "test_return_mean_seeds" in point]
    assert len(returns[-1]) == 8


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_may_go_on_with_fewer_devices_and_with_more(spread, tmp_path):
    """Saved on eight devices, continued on one, saved, and continued on eight: the same as undisturbed, to rounding."""
    folder, _ = spread
    whole = networks(folder)
    run = shutil.copytree(folder, tmp_path / "run")
    for saved, devices in ((32, 1), (64, 8)):
        (run / "summary.json").unlink()
        for later in run.glob("checkpoints/*[0-9]"):
            if int(later.name) > saved:
                shutil.rmtree(later)
        assert checkpoints.find(run).t_env == saved
        omg(run, "train", "--resume", "--devices=all", devices=devices)
    assert checkpoints.find(run).t_env == 96
    for name, x in networks(run).items():
        np.testing.assert_allclose(x, whole[name], rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_environments_on_four_devices_give_the_same_learning_curve(tmp_path):
    words = ["train", "--config=ppo", "--env-config=foraging", *SMALL, "--env_args.episode_limit=6", "--t_max=480"]
    words += ["--log_interval=48"]
    one = metrics(omg(tmp_path / "one", *words))
    four = metrics(omg(tmp_path / "four", *words, "--devices=all", devices=4))
    assert len(one) == len(four) > 5
    for a, b in zip(one, four, strict=True):
        for name in ("return_mean", "loss", "pi_loss", "grad_norm"):
            if name in a:
                assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-5), name


def test_every_device_gets_as_many_as_any_other(monkeypatch):
    monkeypatch.setattr("omg.training.devices.jax.devices", lambda: [object()] * 8)
    monkeypatch.setattr("omg.utils.device.describe", lambda: "eight")
    monkeypatch.setattr("omg.training.devices.Mesh", lambda devices, axes: (len(devices), *axes))
    assert mesh_of("all", 8, 64) == (8, "seeds")
    assert mesh_of("all", 6, 64) == (6, "seeds")
    assert mesh_of("all", 12, 64) == (6, "seeds")
    assert mesh_of("all", 1, 20) == (5, "envs")
    assert mesh_of(4, 1, 64) == (4, "envs")
    assert mesh_of(None, 8, 64) is None
    with pytest.raises(UserError, match="there are 8 here"):
        mesh_of(9, 8, 64)

"""One run on two hosts, which are two processes here: each trains its seeds, the first one keeps the folder."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from omg.training import hosts
from omg.utils import checkpoints
from omg.utils.settings import UserError
from tests.test_devices import ROOT, SMALL, networks, omg

WORDS = [
    "train", "--config=iql", "--env-config=two_step", *SMALL, "--t_max=96", "--save_model_interval=32",
    "--batch_size=8", "--keep_checkpoints=9",
]  # fmt: skip


def begin(*words):
    """The same command on both hosts."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    # Simulated devices: one on each host.
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    shared = [sys.executable, "-m", "omg", *words, "--use_tensorboard=false", f"--coordinator=localhost:{port}"]
    return [
        subprocess.Popen(
            [*shared, "--hosts=2", f"--host={i}"], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for i in range(2)
    ]  # fmt: skip


def together(*words, status=0):
    """Both to the end; what they printed."""
    processes = begin(*words)
    printed = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [status, status], "\n".join(printed)
    return printed


@pytest.mark.slow
def test_two_seeds_on_two_hosts_are_two_single_runs_and_resume_exactly(tmp_path):
    run, seeds = tmp_path / "run", ["--seeds=2", f"--run_dir={tmp_path}/run"]
    printed = together(*WORDS, *seeds)
    assert str(run) in printed[0].splitlines()[-1]
    assert str(run) not in printed[1], "the second host leaves the folder alone"
    whole = networks(run)
    for place, seed in enumerate((1, 2)):
        for name, x in networks(omg(tmp_path / str(seed), *WORDS, f"--seed={seed}")).items():
            np.testing.assert_array_equal(whole[name][place], x, err_msg=name)
    printed = together(*WORDS, *seeds, status=2)
    assert "already holds a run" in printed[0], "the first host says what is wrong"
    assert "another host could not go on" in printed[1]
    (run / "summary.json").unlink()
    for later in ("64", "96"):
        shutil.rmtree(run / "checkpoints" / later)
    together("train", "--resume", f"--run_dir={run}")
    again = networks(run)
    for name, x in whole.items():
        np.testing.assert_array_equal(again[name], x, err_msg=name)


@pytest.mark.slow
def test_ctrl_c_on_one_host_saves_and_stops_both(tmp_path):
    run = tmp_path / "run"
    processes = begin(*WORDS, "--t_max=100000000", "--log_interval=1000", "--seeds=2", f"--run_dir={run}")
    for _ in range(1200):
        if (run / "metrics.jsonl").is_file() and len((run / "metrics.jsonl").read_text().splitlines()) > 1:
            break
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGINT)
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [130, 130], "\n".join(printed)
    assert checkpoints.find(run).t_env > 0


@pytest.mark.parametrize(
    ("given", "hint"),
    [((None, 2, 0), "--coordinator"), (("here", 2, 0), "ADDRESS:PORT"), (("here:1", 2, 2), "0 to N-1")],
)
def test_what_is_missing_is_said(given, hint):
    with pytest.raises(UserError, match=hint):
        hosts.join(*given)

"""Jobs on a Ray cluster of two nodes on this machine: nodes and drivers are killed, and nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omg.cli import main
from omg.utils import checkpoints
from omg.utils.ray_engine import packed, unpack
from omg.utils.settings import UserError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SWEEP = ["sweep", "--config=iql", "--env-config=two_step", "--grid=lr=0.001,0.002,0.003,0.004", "--grid=gamma=0.9,0.99"]
SWEEP += ["--batch_size_run=2", "--batch_size=4", "--buffer_size=64", "--rnn_hidden_dim=8", "--test_interval=100000"]
SWEEP += ["--t_max=20000", "--save_model_interval=500", "--use_tensorboard=false", "--test_nepisode=4"]


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def sweep(folder, address):
    words = [sys.executable, "-m", "omg", *SWEEP, "--engine=ray", f"--ray_address={address}", f"--run_dir={folder}"]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(folder):
    """The networks of every trial, by their checksums."""
    return {
        run.name: checkpoints.find(run).manifest["files"]
        for run in sorted(folder.iterdir())
        if (run / "summary.json").is_file()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray") / "whole"
    assert main([*SWEEP, f"--run_dir={folder}"]) == 0
    found = results(folder)
    assert len(found) == 8
    return found


def begun(folder, count):
    """Waits until so many trials have saved something."""
    deadline = time.monotonic() + 240
    while len({path.parts[-4] for path in folder.glob("*/checkpoints/*/checkpoint.json")}) < count:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_eight_runs_outlive_a_lost_node(cluster, undisturbed, tmp_path):
    extra = cluster.add_node(num_cpus=4)
    cluster.wait_for_nodes()
    driver = sweep(tmp_path / "runs", cluster.address)
    begun(tmp_path / "runs", 3)
    cluster.remove_node(extra, allow_graceful=False)
    output = driver.communicate(timeout=600)[0]
    assert driver.returncode == 0, output
    assert results(tmp_path / "runs") == undisturbed


def test_a_killed_driver_goes_on_with_the_same_command(cluster, undisturbed, tmp_path):
    driver = sweep(tmp_path / "runs", cluster.address)
    begun(tmp_path / "runs", 2)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    deadline = time.monotonic() + 60
    again = sweep(tmp_path / "runs", cluster.address)
    output = again.communicate(timeout=600)[0]
    while again.returncode and "is in use" in output and time.monotonic() < deadline:
        # Ray ends the tasks of a lost driver within seconds.
        again = sweep(tmp_path / "runs", cluster.address)
        output = again.communicate(timeout=600)[0]
    assert again.returncode == 0, output
    assert results(tmp_path / "runs") == undisturbed


def test_ctrl_c_stops_and_the_same_command_goes_on(cluster, undisturbed, tmp_path):
    driver = sweep(tmp_path / "runs", cluster.address)
    begun(tmp_path / "runs", 2)
    driver.send_signal(signal.SIGINT)
    output = driver.communicate(timeout=300)[0]
    assert driver.returncode == 130, output
    assert "Traceback" not in output
    again = sweep(tmp_path / "runs", cluster.address)
    output = again.communicate(timeout=600)[0]
    assert again.returncode == 0, output
    assert results(tmp_path / "runs") == undisturbed


def test_folders_travel_where_none_is_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("content")
    data = packed([Path("a/b"), Path("not/there")])
    unpack(data, tmp_path / "other")
    assert (tmp_path / "other/a/b/file").read_text() == "content"
    with pytest.raises(UserError, match="is not inside"):
        packed([Path("/tmp")])

"""Trackers: every logged number reaches the package, under one identity also after a resume (with stand-ins)."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

import omg
from omg.cli import main
from omg.utils import trackers

SMALL = {
    "t_max": 200, "test_interval": 100, "log_interval": 50, "test_nepisode": 4, "rnn_hidden_dim": 4, "batch_size": 4,
    "batch_size_run": 2, "buffer_size": 16, "use_tensorboard": False,
}  # fmt: skip


@pytest.fixture
def packages(monkeypatch):
    """Modules with the functions of wandb and mlflow that are used; `calls` is what they were told."""
    calls: list = []
    run = SimpleNamespace(
        log=lambda numbers, step: calls.append((step, numbers)), finish=lambda: calls.append("finish"),
        info=SimpleNamespace(run_id="abc"),
    )  # fmt: skip
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    wandb.init = lambda **words: calls.append(words) or run
    mlflow.set_experiment = lambda name: calls.append(name)
    mlflow.start_run = lambda run_id, run_name: calls.append((run_id, run_name)) or run
    mlflow.log_params = lambda params: calls.append(params)
    mlflow.log_metrics = lambda numbers, step: calls.append((step, numbers))
    mlflow.end_run = lambda: calls.append("finish")
    for module in (wandb, mlflow):
        module.__spec__ = SimpleNamespace(name=module.__name__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_a_run_sends_every_point(packages, tmp_path):
    run = omg.train("iql", env="two_step", run_dir=tmp_path / "run", tracker="wandb_offline", **SMALL)
    first, *points, last = packages
    assert (first["mode"], first["name"], first["resume"]) == ("offline", "run", "allow")
    assert first["config"]["t_max"] == 200
    assert last == "finish"
    written = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in points] == [p["t_env"] for p in written]
    assert points[-1][1]["test_return_mean"] == written[-1]["test_return_mean"]


def test_a_resumed_run_has_the_same_identity(packages, tmp_path):
    for _ in range(2):
        trackers.make_tracker("wandb", tmp_path, {})
    assert packages[0]["id"] == packages[1]["id"]
    assert packages[0]["mode"] is None
    packages.clear()
    for _ in range(2):
        tracker = trackers.make_tracker("mlflow", tmp_path, {"lr": 0.1})
    assert packages == ["omg", (None, tmp_path.name), {"lr": "0.1"}, "omg", ("abc", None)]
    tracker.log(5, {"loss": 1.0, "bad": float("nan")})
    tracker.close()
    assert packages[-2:] == [(5, {"loss": 1.0}), "finish"]


@pytest.mark.parametrize(("name", "said"), [("wandbb", "Did you mean"), ("mlflow", "pip install mlflow")])
def test_a_tracker_that_is_not_there_is_one_sentence(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda package: None)
    folder = tmp_path / "run"
    assert main(["train", "--env-config=two_step", f"--tracker={name}", f"--run_dir={folder}"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not folder.exists()

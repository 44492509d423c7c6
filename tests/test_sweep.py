"""Sweeps: which trials run, that they continue, and what is reported. Training is imitated but for one slow test."""

import csv
import json
import math
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from omg import commands
from omg.cli import main, parse
from omg.commands.sweep import combinations, space_of, trial_of


@pytest.fixture
def trained(monkeypatch):
    """Runs are imitated: the return is best at lr = 0.01 and gamma = 0.9. `trained` lists what ran."""
    ran, run = [], commands.run

    def imitate(command):
        if command.verb != "train":
            return run(command)
        values = dict(command.updates)
        if values["run_dir"] in stop:
            return 130
        ran.append(values["run_dir"].rpartition("/")[2])
        from pathlib import Path

        folder = Path(values["run_dir"])
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump({"lr": values["lr"], "gamma": values.get("gamma", 0.9)}))
        mean = -abs(math.log10(values["lr"]) + 2) - abs(values.get("gamma", 0.9) - 0.9)
        seeds = [{"seed": s, "test_return_mean": mean + 0.1 * s, "loss": 1.0} for s in (-1, 0, 1)]
        (folder / "summary.json").write_text(
            json.dumps({"test_return_mean": mean, "wall_seconds": 2.0, "seeds": seeds})
        )
        return 0

    stop: list[str] = []
    monkeypatch.setattr(commands, "run", lambda c: imitate(c) if c.verb == "train" else run(c))
    return ran, stop


GRID = ["sweep", "--config=iql", "--env-config=two_step", "--grid=lr=0.1,0.01", "--grid=gamma=0.9,0.99", "--seeds=3"]


def test_every_combination_is_tried_and_the_best_is_first(trained, tmp_path, capsys):
    ran, _ = trained
    assert main([*GRID, f"--run_dir={tmp_path / 's'}"]) == 0
    assert ran == ["lr_0.1__gamma_0.9", "lr_0.1__gamma_0.99", "lr_0.01__gamma_0.9", "lr_0.01__gamma_0.99"]
    rows = list(csv.DictReader((tmp_path / "s/sweep.csv").open()))
    assert [row["trial"] for row in rows][:2] == ["lr_0.01__gamma_0.9", "lr_0.01__gamma_0.99"]
    assert [float(rows[0][name]) for name in ("test_return_mean", "lowest seed", "highest seed")] == pytest.approx(
        [0, -0.1, 0.1]
    )
    assert (tmp_path / "s/sweep.png").exists()
    assert "best of 4: --lr=0.01 --gamma=0.9" in capsys.readouterr().err
    assert main([*GRID, f"--run_dir={tmp_path / 's'}", "--minimise"]) == 0
    assert json.loads((tmp_path / "s/sweep.json").read_text())["best"] == "lr_0.1__gamma_0.99"
    assert len(ran) == 4, "nothing ran again"


def test_a_sweep_that_was_stopped_goes_on_with_what_is_missing(trained, tmp_path, capsys):
    ran, stop = trained
    words = [*GRID, f"--run_dir={tmp_path / 's'}"]
    stop.append(str(tmp_path / "s/lr_0.01__gamma_0.9"))
    assert main(words) == 130
    assert len(ran) == 2
    assert len((tmp_path / "s/sweep.csv").read_text().splitlines()) == 3, "a table of what is finished"
    assert "To continue: omg sweep" in capsys.readouterr().err
    stop.clear()
    assert main(words) == 0
    assert ran[2:] == ["lr_0.01__gamma_0.9", "lr_0.01__gamma_0.99"]


def test_optuna_asks_again_for_the_same_trials_and_finds_a_better_one(trained, tmp_path):
    ran, _ = trained
    words = ["sweep", "--config=iql", "--env-config=two_step", "--range=lr=0.0001..1", "--optuna", "--trials=12"]
    words += [f"--run_dir={tmp_path / 's'}"]
    assert main(words) == 0
    first = list(ran)
    assert len(first) == 12
    assert main(words) == 0
    assert ran == first
    best = json.loads((tmp_path / "s/sweep.json").read_text())["trials"][0]
    assert abs(math.log10(best["lr"]) + 2) < 0.35


def test_another_sweep_in_the_same_folder_is_not_mixed_in(trained, tmp_path):
    ran, _ = trained
    words = ["sweep", "--config=iql", "--env-config=two_step", f"--run_dir={tmp_path / 's'}"]
    assert main([*words, "--grid=lr=0.01"]) == 0
    assert main([*words, "--grid=lr=0.1,0.2", "--t_max=500"]) == 0
    rows = json.loads((tmp_path / "s/sweep.json").read_text())["trials"]
    assert [row["trial"] for row in rows] == ["lr_0.1", "lr_0.2"]
    shutil.rmtree(tmp_path / "s/lr_0.2")
    assert main([*words, "--grid=lr=0.1,0.2", "--t_max=500"]) == 0
    assert ran == ["lr_0.01", "lr_0.1", "lr_0.2", "lr_0.2"], "what was removed runs again"


def test_a_trial_that_fails_leaves_the_others_their_table(trained, tmp_path, monkeypatch):
    ran, _ = trained
    run = commands.run

    def fail(command):
        if dict(command.updates).get("lr") == 0.1:
            raise RuntimeError("a bug")
        return run(command)

    monkeypatch.setattr(commands, "run", fail)
    words = ["sweep", "--config=iql", "--env-config=two_step", f"--run_dir={tmp_path / 's'}", "--grid=lr=0.1,0.01"]
    assert main([*words, "--seeds=3", "--metric=wall_seconds"]) == 1
    assert ran == ["lr_0.01"]
    assert [row["trial"] for row in json.loads((tmp_path / "s/sweep.json").read_text())["trials"]] == ["lr_0.01"]


def test_random_values_lie_in_their_ranges_and_repeat_with_the_seed():
    space = space_of(parse(["sweep", "--range=lr=0.0001..0.01", "--range=gamma=0.9..0.99", "--grid=seeds=1,2"]))
    drawn = list(combinations(space, 50, seed=3))
    assert drawn == list(combinations(space, 50, seed=3))
    assert len(drawn) == 100
    assert all(0.0001 <= d["lr"] <= 0.01 and 0.9 <= d["gamma"] <= 0.99 for d in drawn)
    whole = space_of(parse(["sweep", "--range=batch_size=4..8"]))
    assert sorted(d["batch_size"] for d in combinations(whole, 50, seed=3)) == [4, 5, 6, 7, 8], "each once"
    assert len(list(combinations(whole, 3, seed=3))) == 3
    low = sum(d["lr"] < 0.001 for d in drawn)
    assert 35 < low < 65, "uniform in the logarithm"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs values to try"),
        (["--grid=lr"], "--grid=lr=0.001,0.0005"),
        (["--range=lr=1"], "two ends"),
        (["--range=lr=2..1"], "smaller"),
        (["--grid=lr=1,2", "--grid=lr=3"], "given twice"),
        (["--grid=lr=1", "--lr=3"], "given twice"),
        (["--grid=lr=1,1"], "same values"),
        (["--grid=lrr=1,2"], "Did you mean"),
        (["--grid=lr=0.1", "--trials=0"], "1 or more"),
        (["--grid=lr=0.1", "--metric=los"], "--metric is test_return_mean"),
        (["--grid=env_args.foo=1,2"], "foo"),
    ],
)
def test_a_mistake_is_one_sentence(trained, tmp_path, capsys, words, said):
    folder = tmp_path / "s"
    assert main(["sweep", "--config=iql", "--env-config=two_step", f"--run_dir={folder}", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not folder.exists()


def test_long_names_of_trials_stay_different(tmp_path):
    base = parse(["train", "--config=iql", "--env-config=two_step"])
    titles = {trial_of(base, {"x" * 150: "y" * 60, "last": i}, tmp_path).title for i in range(3)}
    assert len(titles) == 3
    assert max(map(len, titles)) < 200


@pytest.mark.slow
def test_three_learning_rates_and_three_seeds_on_two_step_stopped_and_resumed(tmp_path):
    """Ctrl-C after the first trial: its table is there, and the same command trains only the others."""
    folder = tmp_path / "s"
    words = ["sweep", "--config=iql", "--env-config=two_step", "--grid=lr=0.002,0.001,0.0005", "--seeds=3"]
    words += ["--t_max=2000", f"--run_dir={folder}"]
    process = subprocess.Popen([sys.executable, "-m", "omg", *words], stderr=subprocess.PIPE, text=True)
    first, deadline = folder / "lr_0.002/summary.json", time.monotonic() + 240
    while not first.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "To continue: omg sweep" in said
    assert next(csv.DictReader((folder / "sweep.csv").open()))["trial"] == "lr_0.002"
    stamp = first.stat().st_mtime_ns
    assert main(words) == 0
    assert first.stat().st_mtime_ns == stamp, "it is not trained again"
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [row["seeds"] for row in rows] == ["3"] * 3
    assert all(float(row["test_return_mean"]) >= 6.5 for row in rows)
    assert (folder / "sweep.png").stat().st_size > 5000

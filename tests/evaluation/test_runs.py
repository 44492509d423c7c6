"""The catalogue of runs, their curves, and the commands that show them. No run is trained here."""

import json
import os
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from omg.cli import main
from omg.evaluation import plots, runs


def write(folder, name="iql", seed=1, points=(), summary=None, sacred=None, **config):
    folder.mkdir(parents=True)
    config = {
        "name": name,
        "env": "foraging",
        "env_config": "foraging",
        "seed": seed,
        "seeds": 1,
        "t_max": 100,
    } | config
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(p) + "\n" for p in points))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    if sacred is not None:
        (folder / "sacred/1").mkdir(parents=True)
        (folder / "sacred/1/run.json").write_text(json.dumps({"status": sacred}))
    return folder


def point(t_env, value, **more):
    return {"t_env": t_env, "seconds": t_env / 10, "test_return_mean": value, **more}


@pytest.fixture
def results(tmp_path):
    root = tmp_path / "results"
    write(
        root / "a", lr=0.1, points=[point(0, 0.0), point(50, 1.0)], summary={"test_return_mean": 1.5, "wall_seconds": 9}
    )
    write(root / "deep/b", lr=0.2, seed=2, points=[point(0, 0.0), point(100, 4.0)], sacred="RUNNING")
    write(root / "c", name="vdn", lr=0.1, points=[point(0, 2.0)], sacred="INTERRUPTED")
    old = write(root / "d", name="vdn", points=[point(0, 2.0)], sacred="RUNNING")
    os.utime(old / "sacred/1/run.json", (time.time() - 3600,) * 2)
    write(root / "e/checkpoints/x")
    write(root / "old", points=[{"t_env": 0, "loss": 1.0}], sacred="INTERRUPTED")
    broken = write(root / "f")
    (broken / "config.yaml").write_bytes(b"\xff\xfe: [")
    return root


def test_every_run_is_listed_with_its_state(results):
    found = {os.path.relpath(r.path, results): r for r in runs.records(results)}
    assert {name: r.state for name, r in found.items()} == {
        "a": "finished", "deep/b": "running", "c": "stopped", "d": "stopped", "f": "damaged", "old": "stopped",
    }  # fmt: skip
    assert (found["a"].test_return, found["a"].seconds, found["a"].steps) == (1.5, 9, 50)
    assert (found["deep/b"].test_return, found["deep/b"].seconds) == (4.0, 10.0)
    assert "UnicodeDecodeError" in found["f"].problem


def test_a_line_that_is_being_written_is_not_read_yet(tmp_path):
    folder = write(tmp_path / "a", points=[point(0, 1.0)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"t_env": 10, "test_ret')
    assert len(runs.points(folder)) == 1
    assert runs.read(folder).steps == 0
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps(point(20, 1.0)) + "\n")
    with pytest.raises(runs.UserError, match="damaged in line 2"):
        runs.points(folder)
    assert runs.read(folder).state == "damaged"


def test_a_long_run_is_read_from_its_end(tmp_path):
    folder = write(tmp_path / "a", points=[point(t, t, filler="x" * 200) for t in range(1000)])
    assert (folder / "metrics.jsonl").stat().st_size > runs.TAIL
    assert runs.read(folder).test_return == 999
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"t_env": 2000, "filler": "x" * 2 * runs.TAIL}) + "\n")
    assert (runs.read(folder).steps, runs.read(folder).test_return) == (2000, 999)


def test_curves_of_several_runs_meet_at_common_places():
    """One run of two seeds, logged at 0 and 10; one run of one seed, logged at 0 and 5, which ends there."""
    first = runs.curve([point(0, 0.0, test_return_mean_seeds=[0, 2]), point(10, 0, test_return_mean_seeds=[10, 4])],
                       "test_return_mean")  # fmt: skip
    second = runs.curve([point(0, 1.0), point(5, 3.0)], "test_return_mean")
    places, values = runs.together([first, second])
    np.testing.assert_array_equal(places, [0, 5, 10])
    np.testing.assert_array_equal(values, [[0, 2, 1], [5, 3, 3], [10, 4, np.nan]])
    mean, low, high = runs.mean_and_band(values)
    np.testing.assert_allclose(mean, [1, 11 / 3, 7])
    assert high[0] - mean[0] == pytest.approx(1.96 * 1 / np.sqrt(3))
    np.testing.assert_allclose(mean - low, high - mean)
    assert (runs.mean_and_band(np.array([[3.0]]))[2] == 3).all(), "one seed has no band"


def test_a_seed_that_diverged_does_not_hide_the_others():
    places, values = runs.curve(
        [{"t_env": 5, "loss": None, "loss_seeds": [1.0, None]}, {"t_env": 6, "loss": None}], "loss"
    )
    np.testing.assert_array_equal(places, [5])
    np.testing.assert_array_equal(values, [[1.0, np.nan]])


def test_smoothing_is_an_exponential_mean_without_a_bias_to_zero():
    smooth = runs.smooth(np.array([[4.0], [8.0]]), 0.5)
    np.testing.assert_allclose(smooth[:, 0], [4, (0.25 * 4 + 0.5 * 8) / 0.75])


def test_runs_are_grouped_by_configuration_or_any_setting(results):
    folders = [results / "a", results / "deep/b"]
    metric, curves = plots.curves_of(folders)
    assert metric == "test_return_mean"
    assert [c.name for c in curves] == ["iql on foraging, lr=0.1", "iql on foraging, lr=0.2"]
    assert [c.name for c in plots.curves_of(folders, by="lr")[1]] == ["lr=0.1", "lr=0.2"]
    assert list(plots.curves_of(folders, x="seconds")[1][0].x) == [0, 5]
    again = write(results / "again", lr=0.1, seed=7, points=[point(0, 2.0), point(100, 3.0)])
    assert [(c.name, c.y.shape) for c in plots.curves_of([folders[0], again])[1]] == [("iql on foraging", (3, 2))]
    with pytest.raises(runs.UserError, match="has no setting lrr"):
        plots.curves_of(folders, by="lrr")


def test_runs_of_the_same_name_are_never_one_curve(results):
    """Two tasks with a run `base` each, that differ in more settings than a name can hold."""
    sizes = {"food": 2, "players": 3, "sight": 4, "grid_size": 5}
    one, other = (
        write(
            results / task / "base", points=[point(0, 1.0)], env_args={key: value + i for key, value in sizes.items()}
        )
        for i, task in enumerate(("lbf_7x7", "lbf_8x8"))
    )
    found = [runs.read(one), runs.read(other)]
    assert runs.groups(found, "run") == ["lbf_7x7/base", "lbf_8x8/base"]
    assert runs.groups(found, "config")[0] == (
        "iql on foraging, env_args.food=2, env_args.grid_size=5, env_args.players=3, and 1 more"
    )
    hidden = [
        replace(found[0], config=found[0].config | {"env_args": found[0].config["env_args"] | {"sight": sight}, **more})
        for sight, more in ((4, {}), (9, {}), (9, {"seed": 5}))
    ]
    # Beyond the settings that are shown: configurations are numbered, and seeds share a curve.
    names = runs.groups([*hidden, found[1]], "config")
    assert names[0].endswith("(1)")
    assert names[1].endswith("(2)")
    assert names[1] == names[2]
    assert runs.differing_settings(found) == [f"env_args.{key}" for key in sorted(sizes)]
    other_learner = replace(found[1], config=found[1].config | {"epsilon_start": 1.0})
    assert "epsilon_start" not in runs.differing_settings([found[0], other_learner]), "one of them has no such setting"
    assert runs.groups([found[0], found[0]], "run") == ["base", "base"]


def test_parquet_holds_the_same_table(results, tmp_path):
    for words in ([], ["--metrics"]):
        for form in ("csv", "parquet"):
            assert main(["export", str(results), *words, f"--to={tmp_path / 'x'}.{form}"]) == 0
        csv, parquet = pd.read_csv(tmp_path / "x.csv"), pd.read_parquet(tmp_path / "x.parquet")
        pd.testing.assert_frame_equal(csv, parquet.replace({None: np.nan, "": np.nan}), check_dtype=False)


def test_commands_show_plot_and_export_them(results, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--json", "--state=finished"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["iql"]
    assert main(["runs", "--sort=test_return"]) == 0
    said = capsys.readouterr().err
    assert "damaged" in said
    assert "UnicodeDecodeError" in said
    assert main(["plot", "results/a", "results/deep", "--by=run", "--to=x.svg"]) == 0
    svg = (tmp_path / "x.svg").read_text()
    assert capsys.readouterr().out == "x.svg\n"
    assert "test return mean" in svg
    assert main(["export", "--to=new/r.csv"]) == 0
    assert sorted(pd.read_csv("new/r.csv").state) == ["damaged", "finished", "running", *["stopped"] * 3]
    assert main(["export", "--metrics", "results", "--to=p.csv"]) == 0
    table = pd.read_csv("p.csv")
    assert list(table[table.path == "results/a"].test_return_mean) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs", "nowhere"], "there is no folder nowhere"),
        (["runs", "--sort=retrun"], "column"),
        (["runs", "--state=done"], "state"),
        (["runs", "--lr=3"], "runs has no option --lr. It takes --sort, --state"),
        (["plot"], "plot needs runs"),
        (["plot", "results/e"], "there are no runs"),
        (["plot", "results/a", "--metric=test_return"], "Did you mean"),
        (["plot", "results/a", "--x=minutes"], "steps or seconds"),
        (["plot", "results/old", "--x=seconds"], "older versions have no seconds"),
        (["plot", "results/a", "--smooth=1"], "below 1"),
        (["plot", "results/a", "--to=x.gif"], ".png, .svg or .pdf"),
        (["export", "--to=x.xls"], ".csv or .parquet"),
        (["export", "a", "b"], "one folder"),
    ],
)
def test_a_mistake_is_one_sentence(results, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in " ".join(capsys.readouterr().err.split())

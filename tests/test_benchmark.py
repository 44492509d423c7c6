"""`omg benchmark` from an empty folder to scores, on a small board with scripted partners."""

import csv
import json

import pytest
import yaml

from omg.cli import main
from omg.commands import benchmark, stages
from omg.opponents import zoo

TASK = {
    "env_config": "foraging",
    "measure": "focal_return",
    "settings": {"env_args.grid_size": 5, "env_args.food": 1, "env_args.episode_limit": 12},
    "pool": {"pool_algs": [], "pool_test_algs": [], "pool_rules": ["slow"], "pool_test_rules": ["random", "rival"]},
    "train": {"rnn_hidden_dim": 16, "batch_size_run": 8, "minibatches": 1, "lr": 0.01, "use_tensorboard": False},
    "budgets": {
        "tiny": {
            "skip": ["blind"],
            "variables": {"steps": 200, "response_steps": 6000, "pool_steps": 1, "seeds": 2, "episodes": 40},
        }
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("benchmark")
    (home / "small.yaml").write_text(yaml.safe_dump(TASK))
    words = ["benchmark", str(home / "small.yaml"), "--budget=tiny", "--methods=base", f"--run_dir={home / 'all'}"]
    assert main(words) == 0
    return home


def rows_of(folder):
    with (folder / "all" / "benchmark.csv").open() as file:
        return list(csv.DictReader(file))


def test_random_play_scores_0_and_best_responses_1_with_every_partner(folder):
    rows = rows_of(folder)
    assert {row["method"] for row in rows} == {"random", "scripted", "oracle", "base", "best_response"}
    assert {row["partner"] for row in rows} <= {"random", "rival"}
    for method, score in (("random", 0), ("best_response", 1)):
        found = [float(row["score"]) for row in rows if row["method"] == method]
        assert found
        assert found == pytest.approx([score] * len(found), abs=1e-6)
    partners = {row["partner"] for row in rows}
    assert len([row for row in rows if row["method"] == "base"]) == 2 * len(partners), "two seeds with each partner"
    by_score = json.loads((folder / "all/small/scores.json").read_text())
    assert by_score["best_response"]["mean"] == pytest.approx(1)
    assert (folder / "all/small/scores.png").exists()


def test_finished_stages_are_not_repeated_and_other_tasks_stay_in_the_table(folder):
    path = folder / "all" / "benchmark.csv"
    with path.open("a") as file:
        file.write("another,base,rival,0,1.5,0.5\n")
    trained = folder / "all/small/base/summary.json"
    at = trained.stat().st_mtime_ns
    words = ["benchmark", str(folder / "small.yaml"), "--budget=tiny", "--methods=base", f"--run_dir={folder / 'all'}"]
    assert main(words) == 0
    assert trained.stat().st_mtime_ns == at
    assert {row["task"] for row in rows_of(folder)} == {"small", "another"}


def test_partners_and_bounds_of_the_zoo_are_used_instead_of_new_ones(folder, tmp_path, monkeypatch):
    """The pool and the bounds that a benchmark made go into the zoo; a second benchmark only trains the method."""
    made = folder / "all" / "small"
    monkeypatch.setattr(zoo, "ROOT", tmp_path / "zoo")
    assert zoo.pack(made / "pool", made / "bounds.json", "small") > 0
    task = benchmark.read(str(folder / "small.yaml"), "tiny")._replace(from_zoo=True)
    plan = benchmark.plan_of(task, ["base"], tmp_path / "again")
    assert [stage.title for stage in plan.stages] == ["base", "base_partners"]
    assert stages.run_plan(plan, 1, whole=False) == 0
    rows = benchmark.score(task, plan.folder, ["base"])
    first = {(row["method"], row["partner"], int(row["seed"])): float(row["score"]) for row in rows_of(folder)}
    again = {(row["method"], row["partner"], row["seed"]): row["score"] for row in rows}
    assert first.keys() == again.keys()
    # The same partners, seeds and settings: the same scores.
    assert [again[key] for key in first] == pytest.approx(list(first.values()), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measure": "soups"}, "return, focal_return, food_eaten"),
        ({"env_config": "simple_spread"}, "no scripted policies"),
        ({"budgets": {"tiny": {"variables": {"steps": 1}}}}, "response_steps"),
        ({"budgets": {"tiny": {**TASK["budgets"]["tiny"], "skip": ["oracle"]}}}, "only blind"),
        ({"pool": [1]}, "not key: value"),
        ({"stages": []}, "unknown key"),
    ],
)
def test_a_mistake_in_a_task_is_said_before_anything_is_trained(change, said, tmp_path, capsys):
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(TASK | change))
    words = ["benchmark", str(tmp_path / "wrong.yaml"), "--budget=tiny", f"--run_dir={tmp_path / 'run'}"]
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

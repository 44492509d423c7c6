"""`omg benchmark` from an empty folder to scores, on a small board with scripted partners."""

import csv
import json

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from omg import config
from omg.cli import main, parse
from omg.commands import benchmark, stages
from omg.opponents import zoo
from omg.utils import checkpoints
from omg.utils.jobs import Engine
from omg.utils.settings import UserError

TASK = {
    "env_config": "foraging",
    "measure": "focal_return",
    "settings": {"env_args.grid_size": 5, "env_args.food": 1, "env_args.episode_limit": 12},
    "pool": {"pool_algs": [], "pool_test_algs": [], "pool_rules": ["slow"], "pool_test_rules": ["random", "rival"]},
    "train": {"rnn_hidden_dim": 16, "batch_size_run": 8, "minibatches": 1, "lr": 0.01, "use_tensorboard": False},
    "budgets": {
        "tiny": {
            "skip": ["blind"],
            "variables": {"steps": 200, "response_steps": 400, "pool_steps": 1, "seeds": 2, "episodes": 40},
        }
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("benchmark")
    (home / "small.yaml").write_text(yaml.safe_dump(TASK))
    words = ["benchmark", str(home / "small.yaml"), "--budget=tiny", "--methods=base", f"--run_dir={home / 'all'}"]
    assert main([*words, "--save_replay"]) == 0
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
    earned = {(row["method"], row["partner"]): float(row["return"]) for row in rows}
    for partner in {row["partner"] for row in rows}:
        assert earned["best_response", partner] >= earned["scripted", partner], "the best response that is known"
    partners = {row["partner"] for row in rows}
    assert len([row for row in rows if row["method"] == "base"]) == 2 * len(partners), "two seeds with each partner"
    by_score = json.loads((folder / "all/small/scores.json").read_text())
    assert by_score["best_response"]["mean"] == pytest.approx(1)
    assert (folder / "all/small/scores.png").exists()
    assert (folder / "all/small/base_replay/replay.gif").exists()


def test_a_short_run_ends_with_what_was_found_and_commands_that_can_be_parsed(folder):
    task = benchmark.read(str(folder / "small.yaml"), "tiny")
    command = parse(["benchmark", str(folder / "small.yaml"), "--budget=tiny", "--methods=base", "--run_dir=x"])
    said = benchmark.what_next(task, folder / "all/small", ["base"], command)
    score = json.loads((folder / "all/small/scores.json").read_text())["base"]["iqm"]
    assert f"After 200 steps: base {score:.2f}." in said
    viewed, evaluate = [line.split() for line in said.splitlines() if line.startswith("  omg ")]
    assert viewed[1:] == ["view", str(folder / "all")]
    assert main([*evaluate[1:], "--test_nepisode=2", f"--run_dir={folder / 'suggested'}"]) == 0
    task.content["budgets"]["small"] = task.content["budgets"]["tiny"]
    longer = benchmark.what_next(task, folder / "all/small", ["base"], command).splitlines()[-1].split()
    again = parse(longer[1:])
    assert (again.words, again.get("budget"), again.get("run_dir")) == ([str(folder / "small.yaml")], "small", None)


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


def test_several_tasks_are_also_scored_together(tmp_path, monkeypatch, capsys):
    earned = {
        "chicken": {"base": (0.2, 0.4), "liam": (0.5, 0.7), "zoo_base": (0.25,), "zoo_liam": (0.1,)},
        "matching_pennies": {"base": (0.6, 0.8), "liam": (0.7, 0.9), "zoo_base": (0.65,), "zoo_liam": (0.1,)},
    }

    def rows(task, folder, methods):
        return [
            {"task": task.name, "method": m, "partner": "a", "seed": seed, "return": 0.0, "score": score}
            for m in earned[task.name]
            for seed, score in enumerate(earned[task.name][m])
        ]

    monkeypatch.setattr(stages, "run_plan", lambda *args, **options: 0)
    monkeypatch.setattr(benchmark, "score", rows)
    words = ["benchmark", "chicken", "matching_pennies", "--methods=base,liam", f"--run_dir={tmp_path}"]
    assert main(words) == 0
    shown = capsys.readouterr().err
    assert "chicken, matching_pennies together" in shown
    (line,) = [line for line in shown.splitlines() if " liam" in line]
    assert "0.700 [0.600, 0.800]" in line
    assert "+0.200 [" in line, "minus base"
    (line,) = [line for line in shown.splitlines() if "zoo_base" in line]
    assert [cell.strip() for cell in line.split("│")[2:4]] == ["0.450", "-0.050"], "agents that ship, with one seed"


def test_a_task_that_is_named_twice_is_refused(tmp_path, capsys):
    assert main(["benchmark", "chicken", "chicken", f"--run_dir={tmp_path}"]) == 2
    assert "every task is named once" in capsys.readouterr().err


def test_partners_and_bounds_of_the_zoo_are_used_instead_of_new_ones(folder, tmp_path, monkeypatch):
    """The pool and the bounds that a benchmark made go into the zoo; a second benchmark only trains the method."""
    made = folder / "all" / "small"
    monkeypatch.setattr(zoo, "ROOT", tmp_path / "zoo")
    assert zoo.pack(made, "small", ["base"]) > 0
    task = benchmark.read(str(folder / "small.yaml"), "tiny")._replace(from_zoo=True)
    plan = benchmark.plan_of(task, ["base"], tmp_path / "again")
    assert [stage.title for stage in plan.stages] == ["base", "base_partners", "zoo_base_partners"]
    assert stages.run_plan(plan, Engine(1), whole=False) == 0
    rows = benchmark.score(task, plan.folder, ["base"])
    first = {(row["method"], row["partner"], int(row["seed"])): float(row["score"]) for row in rows_of(folder)}
    again = {(row["method"], row["partner"], row["seed"]): row["score"] for row in rows}
    shipped = {(partner, seed): again.pop(("zoo_base", partner, seed)) for _, partner, seed in list(again)
               if ("zoo_base", partner, seed) in again}  # fmt: skip
    assert first.keys() == again.keys()
    # The same partners, seeds and settings: the same scores.
    assert [again[key] for key in first] == pytest.approx(list(first.values()), abs=1e-4)
    assert {seed for _, seed in shipped} == {0}
    # The agent that ships is the first seed, in half precision, without what only training needs.
    packed = checkpoints.find_model(tmp_path / "zoo/small/agents/base")
    assert set(packed.manifest["files"]) == {"agent.safetensors"}
    ours = load_file(packed.file("agent.safetensors"))
    theirs = load_file(checkpoints.find_model(made / "base").file("agent.safetensors"))
    assert all(np.allclose(ours[name], theirs[name][0], rtol=1e-3, atol=1e-6) for name in theirs)
    assert not all(np.allclose(ours[name], theirs[name][1], rtol=1e-3, atol=1e-6) for name in theirs)


def test_an_agent_of_the_zoo_is_tested_by_name_and_holds_no_path_of_the_machine_that_trained_it(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(zoo, "ROOT", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    zoo.pack(folder / "all" / "small", "small", ["base"])
    for path in (tmp_path / "zoo").rglob("*.json"):
        assert str(folder) not in path.read_text(), path
    assert main(["evaluate", "--checkpoint_path=zoo:small/base", "--pool=zoo:small", "--test_nepisode=4"]) == 0
    written = capsys.readouterr().out.split()[-1]
    assert written.startswith("results/evaluation_base"), "not into the package"
    assert main(["evaluate", "--checkpoint_path=zoo:small/bass", "--pool=zoo:small"]) == 2
    assert "Did you mean 'base'" in capsys.readouterr().err
    assert main(["train", "--config=ppo", "--env-config=foraging", "--checkpoint_path=zoo:small/base"]) == 2
    assert "not trained further" in capsys.readouterr().err
    with pytest.raises(UserError, match="liam"):
        zoo.pack(folder / "all" / "small", "small", ["base", "liam"])
    assert zoo.agents_of("small") == ["base"], "what is missing is said before anything is replaced"
    zoo.agent_folder("zoo:small/base")
    weights = tmp_path / "zoo/small/agents/base/agent.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    assert main(["evaluate", "--checkpoint_path=zoo:small/base", "--pool=zoo:small"]) == 2
    assert "altered" in capsys.readouterr().err


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


def test_the_mixture_of_intentions_keeps_the_network_that_mixes(tmp_path):
    """Tasks and environments that choose a network for the other learners leave it this one."""
    for name in ("stag_hunt", "prisoners_dilemma"):
        plan = benchmark.plan_of(benchmark.read(name, "tiny"), ["mix"], tmp_path / name)
        training = next(stage.command for stage in plan.stages if stage.title == "mix")
        assert config.load(training)["policy_model"] == "mix_rnn"
    for env in ("stag_hunt", "snowdrift"):
        assert config.load(config.Command(config="ppo_mix", env_config=env))["policy_model"] == "mix_rnn"


def test_a_task_takes_over_the_budgets_that_it_leaves_out(tmp_path):
    own = tmp_path / "own.yaml"
    larger = {"variables": TASK["budgets"]["tiny"]["variables"] | {"seeds": 7}}
    own.write_text(yaml.safe_dump({"based_on": "lbf_7x7", "budgets": {"paper": larger}}))
    base, found = (config.inherited("tasks", name)["budgets"] for name in ("lbf_7x7", str(own)))
    assert found == base | {"paper": larger}
    own.write_text(yaml.safe_dump({"based_on": "lbf_7x7", "budgets": [1]}))
    with pytest.raises(UserError, match=r"budgets in task .* are not key: value"):
        benchmark.read(str(own), "tiny")

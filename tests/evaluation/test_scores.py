"""Scores with partners: 0 is random play, 1 a best response; intervals over seeds."""

import csv

import numpy as np
import pytest

from omg.commands import benchmark, stages
from omg.evaluation.scores import Bounds, difference, estimate_scores, probability_of_improvement
from omg.utils.settings import UserError


def test_random_play_scores_zero_and_a_best_response_one():
    bounds = Bounds(np.array([1.0, -2.0]), np.array([5.0, 0.0]))
    np.testing.assert_array_equal(bounds.score(bounds.random[None]), [[0, 0]])
    np.testing.assert_array_equal(bounds.score(bounds.best[None]), [[1, 1]])
    np.testing.assert_array_equal(bounds.score(np.array([[3.0, 2.0]])), [[0.5, 2.0]])
    assert Bounds(np.array([1.0, 2.0]), np.array([5.0, 4.0])).usable(0.6).tolist() == [True, False]
    assert Bounds(np.array([1.0, 2.0]), np.array([1.0, 1.0])).usable(0.05).tolist() == [False, False]


def test_the_interval_is_over_seeds_whatever_the_partners():
    """Partners that differ widely, seeds that hardly do: an interval over seeds is narrow, one over all values wide."""
    scores = np.array([[0.0, 0.5, 1.0, 0.5], [0.01, 0.51, 0.99, 0.51], [0.02, 0.5, 0.98, 0.49]])
    found = estimate_scores(scores)
    assert found.iqm == pytest.approx(0.5, abs=0.01)
    assert found.mean == pytest.approx(scores.mean())
    assert 0 < found.high - found.low < 0.02
    alone = estimate_scores(scores[:1])
    assert alone.low == alone.high == alone.iqm


def test_the_scores_of_one_agent_with_all_partners_are_resampled_together():
    """One of four agents is bad with every partner: that an interval holds it does not depend on how many there are."""
    for partners in (4, 400):
        found = estimate_scores(np.repeat([[1.0], [1.0], [1.0], [0.0]], partners, 1))
        assert found.low < 0.6
        assert found.high == 1


def test_scores_of_several_tasks_are_averaged_and_methods_compared_on_the_same_tasks():
    base = [np.full((3, 2), 0.5), np.array([[0.0, 0.0], [0.1, 0.1], [0.2, 0.2]])]
    better = [np.full((3, 4), 0.7), np.array([[0.2], [0.3], [0.4]])]
    found = estimate_scores(*base)
    assert found.iqm == pytest.approx(0.3)
    assert found.low < 0.3 < found.high
    gain = difference(better, base)
    assert gain.iqm == gain.mean == pytest.approx(0.2)
    assert 0.1 < gain.low < 0.2 < gain.high < 0.3
    same = difference(base, base)
    assert same.low < same.iqm == 0 < same.high, "agents of two methods are resampled independently"


def test_the_probability_of_improvement_counts_pairs_of_seeds():
    x, y = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 0.0]])
    # First partner: 1 > 0, 3 > 2, 3 > 0 of four pairs. Second partner: all are ties.
    assert probability_of_improvement(x, y).mean == pytest.approx((0.75 + 0.5) / 2)
    assert probability_of_improvement(y, x).mean == pytest.approx((0.25 + 0.5) / 2)


def test_the_interval_of_an_improvement_is_over_seeds_too():
    for partners in (4, 400):
        worse, better = np.full((4, partners), 0.5), np.repeat([[1.0], [1.0], [1.0], [0.0]], partners, 1)
        found = probability_of_improvement(better, worse)
        assert (found.mean, found.n) == (0.75, 4)
        assert found.low < 0.3
        assert found.high == 1
    alone = probability_of_improvement(better[:1], worse)
    assert (alone.low, alone.high, alone.n) == (1, 1, 1)


def test_a_task_with_one_seed_leaves_no_interval():
    several, one = np.array([[0.1], [0.2], [0.3]]), np.array([[0.6, 0.6]])
    found = estimate_scores(several, one)
    assert found.n == 1
    assert found.low == found.high == found.iqm == pytest.approx(0.4)
    assert difference([several, one], [several, several]).n == 1


def test_returns_are_read_by_seed_and_partner(tmp_path):
    path = tmp_path / "opponents.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["member", "algorithm", "split", "seed", "return"])
        writer.writerows([["a", "x", "train", 1, 9], ["b", "x", "unseen", 1, 2], ["c", "x", "unseen", 1, 3]])
        writer.writerows([["b", "x", "unseen", 2, 4], ["c", "x", "unseen", 2, 5]])
    np.testing.assert_array_equal(benchmark.returns_of(path, ["c", "b"], "return"), [[3, 2], [5, 4]])


def test_a_task_trains_its_bounds_with_unseen_partners_and_its_methods_with_the_others(tmp_path):
    task = benchmark.read("lbf_7x7", "paper", new_partners=True)
    plan = benchmark.plan_of(task, ["base", "omg"], tmp_path)
    commands = {stage.title: stage.command for stage in plan.stages}
    for name, partners in {"best_response": "unseen", "oracle": "unseen", "blind": "unseen", "omg": "train"}.items():
        assert commands[name].get("partners", "train") == partners
    assert commands["best_response"].get("one_partner_each") is True
    assert commands["omg"].config == "ppo_omg"
    assert commands["omg"].get("vae_path") == str(tmp_path / "vae_of_omg")
    steps = task.budget["variables"]["steps"]
    assert commands["base"].get("t_max") == steps // 2, "the budget counts the steps of both seats"
    assert steps // commands["base"].get("test_interval") == stages.TESTS, "as the interval does"
    assert steps // commands["oracle"].get("log_interval") == stages.POINTS
    assert commands["pool"].get("test_interval") is None
    assert {"oracle_partners", "blind_partners", "base_partners", "omg_partners"} <= set(commands)
    names = [stage.title for stage in plan.stages]
    assert names.index("pool") == 0


def test_a_task_may_say_how_often_it_is_tested(tmp_path):
    own = tmp_path / "own.yaml"
    for where, value in (("settings: {test_interval: 7}", 7), ("train: {test_interval: 8}", 8)):
        own.write_text(f"based_on: lbf_7x7\n{where}\n")
        plan = benchmark.plan_of(benchmark.read(str(own), "paper"), ["base"], tmp_path)
        assert next(s.command for s in plan.stages if s.title == "base").get("test_interval") == value
    task = benchmark.read("lbf_7x7", "paper")
    task = task._replace(budget=task.budget | {"variables": task.budget["variables"] | {"test_interval": 9}})
    plan = benchmark.plan_of(task, ["base"], tmp_path)
    assert next(s.command for s in plan.stages if s.title == "base").get("test_interval") == 9


def test_a_task_can_define_methods_of_its_own(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "based_on: lbf_7x7\nmethods: {change: {config: ppo_omg_plus, subgoal_form: change, vae_beta: 0.1}}\n"
    )
    task = benchmark.read(str(own), "paper")
    assert benchmark.methods_of("base,change", [task]) == ["base", "change"]
    with pytest.raises(UserError, match="not 'change'"):
        benchmark.methods_of("change", [task, benchmark.read("lbf_7x7", "paper")])
    commands = {stage.title: stage.command for stage in benchmark.plan_of(task, ["base", "change"], tmp_path).stages}
    assert commands["change"].config == commands["vae_of_change"].config == "ppo_omg_plus"
    assert commands["change"].get("subgoal_form") == "change"
    assert commands["vae_of_change"].get("vae_beta") == 0.1
    assert commands["change"].get("vae_beta") is None, "only pre-training reads it"
    assert commands["change"].get("vae_path") == str(tmp_path / "vae_of_change")
    own.write_text("based_on: lbf_7x7\nmethods: {change: {subgoal_form: change}}\n")
    with pytest.raises(UserError, match="needs a config"):
        benchmark.read(str(own), "paper")

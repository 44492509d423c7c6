"""Workflows: the stages of a YAML file run in order, and the same command resumes a workflow that was stopped."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from omg import config as configuration
from omg.cli import main
from omg.commands import benchmark, stages
from omg.commands.stages import check, plan_of
from omg.commands.workflow import budget_of, read
from omg.config import Command
from omg.learners.goal_learning import Trajectories, choose_goals, events
from omg.utils.settings import UserError

SMALL = {"seed": 1, "env_args.grid_size": 4, "env_args.hunters": 2, "env_args.hares": 2, "env_args.episode_limit": 6}
TINY = {
    "env_config": "stag_hunt",
    "settings": SMALL,
    "stages": [
        {"collect": "rules", "vae_episodes": 16},
        {"pretrain": "hop_plus", "trajectories": "{collect_rules}", "vae_updates": 40, "n_goal_clusters": 4,
         "goal_form": "state_time_reward", "vae_hidden_dim": 8, "goal_latent_dim": 2},
        {"train": "ppo", "t_max": 60, "batch_size_run": 4, "test_nepisode": 4, "rnn_hidden_dim": 4},
        {"train": "hop_plus", "goals_path": "{pretrain_hop_plus}", "pool": "{train_ppo}", "t_max": 20,
         "batch_size_run": 2, "batch_size": 2, "buffer_size": 16,
         "goal_form": "state_time_reward",
         "test_nepisode": 2, "n_goal_clusters": 4, "vae_hidden_dim": 8, "goal_latent_dim": 2, "hop_hidden_dim": 8,
         "simulations": 4, "goal_draws": 1, "train_simulations": 4, "train_goal_draws": 1, "updates_per_iteration": 1},
        {"adapt": "train_hop_plus", "pool": "rules", "adapt_episodes": 2, "test_nepisode": 2},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("workflow") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def done(plan, tmp_path_factory):
    """Stopped by Ctrl-C when the training of PPO begins, and resumed."""
    folder = tmp_path_factory.mktemp("run")
    words = ["workflow", str(plan), f"--run_dir={folder}"]
    first = subprocess.Popen([sys.executable, "-m", "omg", *words], stderr=subprocess.PIPE, text=True)
    while not (folder / "train_ppo" / "config.yaml").exists():
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 130, said
    assert f"omg workflow {plan} --run_dir={folder}" in said, "the command that resumes"
    assert not (folder / "train_ppo" / "summary.json").exists()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("[cp]*_*/*")}
    assert len(before) > 3
    assert main(words) == 0
    assert all(path.stat().st_mtime_ns == at for path, at in before.items()), "finished stages are not repeated"
    return folder


def plan_from(path, folder):
    return plan_of(str(path), read(str(path)), {}, folder, None)


def imitate(monkeypatch, run):
    """Replaces every stage by a function of its title."""
    monkeypatch.setattr(stages, "run_stage", lambda stage, plan: run(stage.title))


def test_all_stages_run(done):
    assert (done / "collect_rules" / "trajectories.npz").exists()
    assert (done / "pretrain_hop_plus" / "goals.png").stat().st_size > 1000
    assert json.loads((done / "train_ppo" / "summary.json").read_text())["t_env"] >= 60
    assert (done / "train_hop_plus" / "checkpoints").is_dir()
    adapted = json.loads((done / "adapt_train_hop_plus" / "summary.json").read_text())
    assert {"nearest_prey", "random", "tit_for_tat", "switcher"} <= set(adapted)
    assert 0 <= adapted["random"]["action accuracy"]["mean"] <= 1
    assert (done / "adapt_train_hop_plus" / "adaptation.png").stat().st_size > 1000
    state = json.loads((done / "workflow.json").read_text())
    assert [entry["done"] for entry in state.values()] == [True] * 5


def test_a_second_call_runs_no_stage(done, plan, capsys):
    assert main(["workflow", str(plan), f"--run_dir={done}"]) == 0
    assert "[1/5]" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_contains_the_learned_goals(done, capsys):
    (done / "pretrain_hop_plus").rename(done / "elsewhere")
    try:
        words = [f"--checkpoint_path={done / 'train_hop_plus'}", "--test_nepisode=2", "--pool=rules"]
        assert main(["adapt", *words, "--adapt_episodes=1", "--co_players=[random]", "--save_replay"]) == 0
        assert list((done / "train_hop_plus" / "adaptation").glob("*/replay.gif"))
        assert main(["adapt", *words, "--oracle_goals"]) == 2, "learned goals are not the environment's"
        assert "environment's goals" in capsys.readouterr().err
    finally:
        (done / "elsewhere").rename(done / "pretrain_hop_plus")


@pytest.mark.parametrize("stage", range(5))
def test_ctrl_c_in_any_stage_is_resumed_there(plan, tmp_path, stage, monkeypatch):
    ran = []

    def run(title, stop_at):
        ran.append(title)
        if len(ran) - 1 == stop_at:
            raise KeyboardInterrupt
        return 0

    words = ["workflow", str(plan), f"--run_dir={tmp_path / 'run'}"]
    titles = [stage.title for stage in plan_from(plan, tmp_path / "run").stages]
    imitate(monkeypatch, lambda title: run(title, stage))
    assert main(words) == 130
    assert ran == titles[: stage + 1]
    ran.clear()
    imitate(monkeypatch, lambda title: run(title, -1))
    assert main(words) == 0
    assert ran == titles[stage:], "from the stage that was stopped, without the finished ones"


def test_a_stage_that_fails_stops_what_needs_it_and_is_repeated(plan, tmp_path, monkeypatch):
    ran = []
    words = ["workflow", str(plan), f"--run_dir={tmp_path / 'run'}"]
    imitate(monkeypatch, lambda title: ran.append(title) or 7 * (title == "pretrain_hop_plus"))
    assert main(words) == 7
    assert ran == ["collect_rules", "pretrain_hop_plus", "train_ppo"]
    imitate(monkeypatch, lambda title: ran.append(title) or 0)
    assert main(words) == 0
    assert ran[3:] == ["pretrain_hop_plus", "train_hop_plus", "adapt_train_hop_plus"]


def test_independent_stages_run_at_once_and_dependent_ones_after_them(plan, tmp_path, monkeypatch):
    began, ended, lock = [], [], threading.Lock()
    both = threading.Barrier(2, timeout=20)

    def in_process(job, folder, running, at_once):
        with lock:
            began.append((job.title, tuple(ended)))
        if job.title in ("collect_rules", "train_ppo"):
            both.wait()
        with lock:
            ended.append(job.title)
        return 0

    monkeypatch.setattr("omg.utils.jobs._in_process", in_process)
    assert main(["workflow", str(plan), f"--run_dir={tmp_path / 'run'}", "--jobs=2"]) == 0
    before = dict(began)
    assert {title for title, _ in began[:2]} == {"collect_rules", "train_ppo"}
    assert "collect_rules" in before["pretrain_hop_plus"]
    assert {"pretrain_hop_plus", "train_ppo"} <= set(before["train_hop_plus"])
    assert "train_hop_plus" in before["adapt_train_hop_plus"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"stages": []}, "no stages"),
        ({"stages": [{"trane": "ppo"}]}, "train"),
        ({"stages": ["train"]}, "mapping"),
        ({"stages": [{"adapt": "train_ppo"}]}, "earlier stage"),
        ({"stages": [{"train": "ppo"}, {"train": "ppo"}]}, "name of its own"),
        ({"stages": [{"train": "hop_plus", "goals_path": "{pretrain}"}]}, "not before it"),
        ({"stagse": []}, "stages"),
    ],
)
def test_a_mistake_in_a_workflow_raises_a_user_error(tmp_path, change, hint):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"stages": [{"train": "ppo"}], **change}, sort_keys=False))
    with pytest.raises(UserError, match=hint):
        plan_from(path, tmp_path)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--co_players=[]", "always_stag"),
        ("--test_nepisode=many", "test_nepisode takes"),
        ("--seed=soon", "seed takes"),
        ("--run_dir=5", "run_dir takes"),
        ("--adapt_episodes=0", "1 or more"),
        ("--pool={}/train_hop_plus", "only agents that do not plan"),
        ("--pool={}/nowhere", "omg pool"),
    ],
)
def test_a_mistake_in_an_adaptation_raises_a_user_error(done, word, hint, capsys):
    assert main(["adapt", f"--checkpoint_path={done / 'train_hop_plus'}", word.format(done)]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(configuration.available("tasks")))
def test_shipped_tasks_are_valid(name, tmp_path):
    for budget in ("tiny", "small", "paper"):
        plan = benchmark.plan_of(benchmark.read(name, budget, new_partners=True), list(benchmark.METHODS), tmp_path)
        if budget != "small":
            # It differs from `paper` in numbers only; building every stage of each budget would take minutes.
            check(plan, Command())
        earlier = set()
        for stage in plan.stages:
            assert set(stage.after) <= earlier, stage.title
            earlier.add(stage.title)
        assert {"best_response", "oracle", *benchmark.METHODS} <= earlier


@pytest.mark.parametrize("name", sorted(configuration.available("workflows")))
def test_shipped_workflows_are_valid(name, tmp_path):
    """Every stage's settings are known, and the stages that it needs come before it, in every budget and variant."""
    content = read(name)
    variants = (content.get("variants") or {}).get("values", [None])
    for budget in content.get("budgets") or [None]:
        for variant in variants:
            plan = plan_of(name, content, budget_of(content, budget), tmp_path, variant)
            assert len(plan.stages) >= 5
            check(plan, Command())
            earlier = set()
            for stage in plan.stages:
                assert set(stage.after) <= earlier, stage.title
                earlier.add(stage.title)


def test_a_number_of_steps_changes_the_largest_budget():
    small, large = {"variables": {"steps": 10, "seeds": 1}}, {"variables": {"steps": 90, "seeds": 5}, "skip": ["x"]}
    found = budget_of({"budgets": {"large": large, "small": small}}, "50")
    assert found == {"variables": {"steps": 50, "pool_steps": 20, "seeds": 5}, "skip": ["x"]}
    with pytest.raises(UserError, match="no budgets: leave --budget out"):
        budget_of({}, "50")


def test_stages_share_settings(tmp_path):
    path = tmp_path / "shared.yaml"
    path.write_text(
        "stages:\n- train: iql\n  with: &short {t_max: 100, lr: 0.1}\n- train: vdn\n  with: *short\n  lr: 0.2\n"
    )
    first, second = (stage.words() for stage in plan_from(path, tmp_path).stages)
    assert {"--t_max=100", "--lr=0.1"} <= set(first)
    assert {"--t_max=100", "--lr=0.2"} <= set(second), "a stage's own settings override the shared ones"
    assert not any(word.startswith("--with") for word in first)


def test_a_budget_has_settings_for_a_verb_and_for_one_stage(tmp_path):
    content = {"stages": [{"train": "iql", "lr": 0.1}, {"train": "vdn", "name": "team", "lr": 0.1}]}
    budget = {"train": {"batch_size_run": 4, "lr": 0.2}, "team": {"lr": 0.3}}
    first, team = (stage.words() for stage in plan_of("own", content, budget, tmp_path, None).stages)
    assert {"--batch_size_run=4", "--lr=0.2"} <= set(first)
    assert {"--batch_size_run=4", "--lr=0.3"} <= set(team), "a stage's settings override those of its verb"
    with pytest.raises(UserError, match=r"'taem', which is no verb and no stage. Did you mean 'team'"):
        plan_of("own", content, {"taem": {"lr": 0.3}}, tmp_path, None)
    with pytest.raises(UserError, match="cannot be called skip"):
        plan_of("own", {"stages": [{"train": "iql", "name": "skip"}]}, {}, tmp_path, None)


def test_a_workflow_has_variables_that_one_based_on_it_replaces(tmp_path):
    path, other = tmp_path / "first.yaml", tmp_path / "second.yaml"
    path.write_text(
        "variables: {steps: 100, partners: [a, b]}\n"
        'stages:\n- train: iql\n  t_max: "{steps}"\n'
        '- adapt: train_iql\n  co_players: "{partners}"\n  pool: "{steps}_x"\n'
    )
    other.write_text(f"based_on: {path}\nvariables: {{steps: 200}}\n")
    train, adapt = (stage.words() for stage in plan_from(path, tmp_path).stages)
    assert "--t_max=100" in train
    assert {'--co_players=["a", "b"]', "--pool=100_x"} <= set(adapt), "a list stays a list"
    train, adapt = (stage.words() for stage in plan_from(other, tmp_path).stages)
    assert "--t_max=200" in train
    assert '--co_players=["a", "b"]' in adapt, "what the second does not replace is as in the first"
    budget = {"variables": {"steps": 300}}
    train, _ = (stage.words() for stage in plan_of("other", read(str(other)), budget, tmp_path, None).stages)
    assert "--t_max=300" in train, "a budget overrides the file"


@pytest.mark.parametrize(
    ("variables", "setting", "hint"),
    [
        ({"where": "{collect_rules}"}, "{where}", "cannot name a stage"),
        ({"many": [1, 2]}, "{many}_x", "not a part of a text"),
        ({"steps": "many"}, "{steps}", "steps takes a whole number"),
        ([1], "x", "variables in workflow .* are not key: value"),
    ],
)
def test_a_mistake_in_a_variable_raises_a_user_error(tmp_path, variables, setting, hint):
    path = tmp_path / "wrong.yaml"
    stages_of = [{"collect": "rules"}, {"train": "iql", "run_dir": setting}]
    path.write_text(yaml.safe_dump({"variables": variables, "stages": stages_of}, sort_keys=False))
    with pytest.raises(UserError, match=hint):
        plan_from(path, tmp_path)


def test_events_are_the_steps_with_reward():
    obs = np.arange(2 * 4 * 1 * 3, dtype=np.float32).reshape(2, 4, 1, 3)
    reward = np.zeros((2, 4, 1), np.float32)
    reward[0, 2], reward[1, 0], reward[1, 3] = 5, 1, 7
    playing = np.ones((2, 4, 1), bool)
    playing[1, 3] = False
    played = Trajectories(obs, reward, playing, np.zeros((2, 4, 1), int), np.ones((2, 4, 1, 2), bool))
    rows, earned = events(played, 4)
    np.testing.assert_array_equal(rows, [[*obs[0, 2, 0], 0.5, 5], [*obs[1, 0, 0], 0, 1]])
    np.testing.assert_array_equal(earned, [5, 1])


def test_goals_in_a_latent_space_are_cluster_centres():
    rng = np.random.default_rng(0)
    latents = np.concatenate([rng.normal(c, 0.1, (50, 2)) for c in ((0, 0), (5, 0), (0, 5))]).astype(np.float32)
    found = np.asarray(choose_goals(jnp.asarray(latents), 3, jax.random.key(1)))
    for centre in ((0, 0), (5, 0), (0, 5)):
        assert np.abs(found - centre).sum(-1).min() < 0.2


def test_a_mistake_in_a_later_stage_is_reported_first_and_can_be_corrected(tmp_path, monkeypatch, capsys):
    """No stage has run, and the corrected workflow may use the same folder."""
    folder, path, ran = tmp_path / "run", tmp_path / "plan.yaml", []
    imitate(monkeypatch, lambda title: ran.append(title) or 0)

    def carry_out(*stages):
        path.write_text(yaml.safe_dump({"stages": list(stages)}, sort_keys=False))
        status = main(["workflow", str(path), f"--run_dir={folder}"])
        return status, " ".join(capsys.readouterr().err.split())

    for wrong in ({"train": "vnd"}, {"train": "vdn", "t_mx": 3}, {"adapt": "train_iql", "adapt_episode": 3}):
        status, said = carry_out({"train": "iql"}, wrong)
        assert status == 2
        assert "in stage" in said
        assert "Did you mean" in said
    status, said = carry_out({"train": "iql"}, {"adapt": "train_iql", "simulations": 50})
    assert status == 2
    assert "in stage adapt_train_iql: simulations has no effect here: it is a setting of hop_mac" in said
    assert not ran
    assert not folder.exists()
    assert carry_out({"train": "iql"}, {"train": "vdn"})[0] == 0
    assert carry_out({"train": "iql"}, {"train": "vdn"}, "adapt")[0] == 0
    assert ran == ["train_iql", "train_vdn", "adapt_train_vdn"]
    status, said = carry_out({"train": "iql", "lr": 0.1}, {"train": "vdn"})
    assert status == 2
    assert "another stage train_iql: choose another --run_dir" in said
    (folder / "workflow.json").write_text("{")
    status, said = carry_out({"train": "iql"})
    assert status == 2
    assert "damaged" in said


def test_the_minimal_workflow_of_the_documentation_is_valid(tmp_path):
    page = Path(__file__).parent.parent / "docs" / "hop.md"
    path = tmp_path / "plan.yaml"
    path.write_text(page.read_text().split("```yaml\n")[1].split("```")[0])
    plan = plan_from(path, tmp_path)
    check(plan, Command())
    words = [stage.words() for stage in plan.stages]
    assert "--config=hop_plus" in words[1]
    assert f"--pool={tmp_path / 'train_ppo'}" in words[3]
    assert f"--checkpoint_path={tmp_path / 'train_hop_plus'}" in words[-1]
    with pytest.raises(UserError, match="before anything is trained"):
        plan_of("plan", {"stages": ["adapt"]}, {}, tmp_path, None)

"""The command line as a user sees it: runs, their files, evaluation, and the answers to bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import yaml

from omg.cli import main
from omg.commands import workflow
from omg.commands.stages import Stage
from omg.config import Command
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.evaluation.recording import record_team
from omg.evaluation.replay import save_replay
from omg.opponents import REGISTRY as scripted
from omg.training.restore import goes_on, start_of
from omg.training.settings import RunSettings
from omg.utils import checkpoints
from omg.utils.files import check_writable
from omg.utils.jobs import Engine, run_jobs
from omg.utils.settings import UserError

SMALL = ["--rnn_hidden_dim=8", "--use_tensorboard=false", "--batch_size_run=1", "--updates_per_iteration=1"]
QUICK = [*SMALL, "--config=vdn", "--env-config=climbing", "--t_max=200", "--test_interval=100", "--log_interval=50"]
FORAGING = [*SMALL, "--config=iql", "--env-config=foraging", "--length_buckets=1", "--batch_size=4", "--t_max=300"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished run, for tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    words = [*QUICK, f"--run_dir={folder}", "--use_tensorboard=true", "--save_model_interval=50"]
    assert main(words) == 0
    return folder


def test_a_run_writes_its_files(run_dir):
    names = {p.name for p in run_dir.iterdir()}
    assert {
        "config.yaml",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "summary.json",
        "sacred",
        "curve.png",
    } <= names
    summary = json.loads((run_dir / "summary.json").read_text())
    wanted = "t_env episodes updates seed test_return_mean test_return_std test_ep_length_mean env_steps_per_second"
    assert set(wanted.split()) | {"wall_seconds"} <= set(summary)
    assert summary["t_env"] == summary["episodes"] == 200
    assert summary["updates"] == 200 - 31
    assert list(run_dir.glob("tensorboard/events*"))
    assert json.loads((run_dir / "sacred/1/run.json").read_text())["status"] == "COMPLETED"


def test_logged_points_ascend_and_contain_tests(run_dir):
    points = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [p["t_env"] for p in points]
    assert steps == sorted(set(steps))
    assert [p["t_env"] for p in points if "test_return_mean" in p] == [0, 100, 200]
    assert all("loss" in p for p in points if p["t_env"] >= 50)


def test_the_newest_checkpoints_are_kept(run_dir):
    assert checkpoints.steps_in(run_dir / "checkpoints") == [100, 150, 200]
    names = {p.name for p in (run_dir / "checkpoints/200").iterdir()}
    assert {"agent.safetensors", "mixer.safetensors", "opt.safetensors", "checkpoint.json"} <= names


def test_the_last_line_is_the_folder_and_evaluation_repeats_the_test(run_dir, capsys):
    assert main(["evaluate", f"--checkpoint_path={run_dir}"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["t_env"] == 200
    trained = json.loads((run_dir / "summary.json").read_text())
    assert summary["test_return_mean"] == trained["test_return_mean"]


def test_a_saved_model_keeps_its_configuration(run_dir, capsys):
    assert main(["evaluate", f"--checkpoint_path={run_dir}", "--config=qmix"]) == 2
    assert "has no place here" in capsys.readouterr().err
    assert main(["evaluate", f"--checkpoint_path={run_dir}", "--load_step=last"]) == 2
    assert "load_step takes a whole number" in capsys.readouterr().err


def test_load_step_selects_the_nearest_checkpoint(run_dir):
    assert checkpoints.find(run_dir, 120).t_env == 100
    assert checkpoints.find(run_dir, 0).t_env == 200


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--resume"]], ids=["once", "resumable"])
def test_a_new_run_starts_from_a_saved_model(run_dir, tmp_path, more):
    words = [*QUICK, *more, f"--run_dir={tmp_path / 'next'}", f"--checkpoint_path={run_dir}", "--t_max=260"]
    assert main(words) == 0
    points = [json.loads(line) for line in (tmp_path / "next/metrics.jsonl").read_text().splitlines()]
    assert points[0]["t_env"] == 200
    assert points[-1]["t_env"] >= 260
    trained = json.loads((run_dir / "summary.json").read_text())
    assert points[0]["test_return_mean"] == trained["test_return_mean"]


def test_a_resumable_run_starts_from_a_saved_model_until_it_has_a_checkpoint_of_its_own(run_dir, tmp_path, capsys):
    home = tmp_path / "run"
    home.mkdir()
    (home / "config.yaml").touch()
    run = RunSettings(resume=True, run_dir=str(home), checkpoint_path=str(run_dir))
    found = start_of(run, home)
    assert found.path == run_dir / "checkpoints/200"
    assert not goes_on(run, found)
    assert f"starting over from {run_dir}" in " ".join(capsys.readouterr().err.split())
    shutil.copytree(run_dir / "checkpoints/150", home / "checkpoints/150")
    own = start_of(run, home)
    assert own.path == home / "checkpoints/150"
    assert goes_on(run, own)


@pytest.mark.slow
def test_several_seeds_are_reported_each_and_on_average(tmp_path):
    assert main([*QUICK, f"--run_dir={tmp_path / 'r'}", "--seeds=3", "--seed=5", "--save_model=false"]) == 0
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert [s["seed"] for s in summary["seeds"]] == [5, 6, 7]
    mean = sum(s["test_return_mean"] for s in summary["seeds"]) / 3
    assert summary["test_return_mean"] == pytest.approx(mean)


@pytest.mark.slow
def test_save_replay_writes_an_animation_of_the_environment(tmp_path):
    from PIL import Image

    words = [*FORAGING, f"--run_dir={tmp_path / 'r'}", "--save_replay", "--test_interval=1000", "--test_nepisode=4"]
    assert main(words) == 0
    env = make("foraging")
    nearest_food = ScriptedMAC(env.spec, scripted["foraging"]["nearest_food"](env.spec))
    save_replay(record_team(env, nearest_food, None, jax.random.key(0)), tmp_path / "scripted.gif")
    with Image.open(tmp_path / "r/replay.gif") as trained, Image.open(tmp_path / "scripted.gif") as other:
        assert trained.format == "GIF"
        assert trained.size == other.size
        # An agent that moves at every step is seen at every step; equal frames are stored once.
        assert other.n_frames > 5


def test_print_config_and_list_and_help(capsys):
    assert main(["print_config", "--config=qmix", "--env-config=two_step"]) == 0
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "qmix" in out
    assert "two_step" in out
    assert main(["--help"]) == 0
    assert "workflow" in capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    assert "batch_size_run" in capsys.readouterr().out


@pytest.mark.slow
def test_bench_prints_its_documented_keys(capsys, monkeypatch):
    monkeypatch.setattr("omg.commands.bench.SECONDS", 0.05)
    assert main(["bench", "--json", *SMALL, "--config=vdn", "--env-config=climbing", "--bench_envs=4"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for key in ("env_steps_per_second_env", "env_steps_per_second_train", "updates_per_second"):
        assert result[key] > 0


@pytest.mark.slow
def test_settings_that_can_be_adjusted_are_adjusted_with_a_notice(tmp_path, capsys):
    words = [*QUICK, "--use_cuda", "--batch_size_run=3", "--test_nepisode=7", f"--run_dir={tmp_path / 'r'}"]
    assert main([*words, "--buffer_size=50", "--save_model=false"]) == 0
    said = capsys.readouterr().err
    assert "no GPU here" in said
    assert "buffer_size 50 → 48" in said
    config = yaml.safe_load((tmp_path / "r/config.yaml").read_text())
    # Seven episodes are played, although three environments run in parallel.
    assert (config["test_nepisode"], config["buffer_size"]) == (7, 48)
    assert json.loads((tmp_path / "r/summary.json").read_text())["test_nepisode"] == 7


BAD = {
    "unknown config": (["--config=qmxi"], "qmix"),
    "unknown environment": (["--env-config=forage"], "foraging"),
    "unknown key": (["--bach_size=3"], "batch_size"),
    "unknown flag": (["--save_repla"], "save_replay"),
    "unknown environment setting": (["with", "env_args.gridsize=9"], "grid_size"),
    "unknown learner": (["--learner=q_lerner"], "q_learner"),
    "wrong type": (["--t_max=soon"], "t_max takes a whole number"),
    "wrong type of a nested setting": (["with", "env_args.food=many"], "env_args.food takes a whole number"),
    "batch larger than buffer": (["--batch_size=99", "--buffer_size=50"], "batch_size (99)"),
    "no steps": (["--t_max=0"], "t_max is 0"),
    "a negative number of steps": (["--t_max=-5"], "t_max is -5"),
    "a missing checkpoint": (["--checkpoint_path=nowhere"], "no such folder"),
    "buffer too large": (["--buffer_size=2000000000", "--buffer_gib=1000000"], "largest that fits"),
    "an environment without images": (["--env-config=simple_spread", "--save_replay"], "without --save_replay"),
    "no MongoDB client": (["--env-config=climbing", "--mongo_url=mongodb://localhost"], "pip install pymongo"),
    "resume without a folder": (["--resume"], "--run_dir=DIR"),
    "an impossible board": (["with", "env_args.food=50"], "at most"),
    "continuous actions": (["--env-config=jaxmarl", "with", "env_args.name=MPE_simple_facmac_v1"], "discrete"),
    "no pool": (["--config=iql_am"], "omg pool --env-config=foraging"),
    "a team without --multi_algs": (["--config=1iql1iql_omg"], "--multi_algs"),
    "a team of an unknown algorithm": (["--config=1iql1qmxi", "--multi_algs"], "Did you mean 'qmix'"),
    "a team too large": (["--config=4iql3qmix1iql_am", "--multi_algs"], "4 + 3 + 1 = 8 agents, but foraging has 2"),
    "a trained algorithm without a seat": (["--config=1iql1iql_am", "--multi_algs", "--train_alg=vdn"], "no seat"),
    "a team learner among others": (["--config=1iql1qtran", "--multi_algs"], "learns for a whole team"),
    "qtran's mixer for vdn": (["--config=vdn", "--mixer=qtran"], "QLearner has no loss for qtran"),
    "a mixer for one agent": (["--config=qmix", "--pool=rules"], "--config=1any2qmix --multi_algs"),
    "an unknown subgoal mode": (["--config=iql_omg", "--subgoal_mode=optimal"], "subgoal_mode takes 'optimistic'"),
    "an unknown JaxMARL environment": (["--env-config=jaxmarl", "with", "env_args.name=MPE_simple_sprea_v3"], "spread"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_is_answered_with_one_sentence_and_writes_nothing(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, complaint = BAD[case]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


OTHER_VERBS = {
    "an unknown word after pool": (["pool", "list"], "omg pool show"),
    "a pool that does not exist": (["pool", "show"], "there is no pool"),
    "an unknown scripted policy": (["pool", "--pool_rules=[nearest_foot]"], "nearest_food"),
    "seen and unseen": (["pool", "--pool_algs=[iql]", "--pool_test_algs=[iql]"], "cannot both train and be unseen"),
    "an agent model in the pool": (["pool", "--pool_algs=[iql_omg]"], "take iql"),
    "stages beyond the end": (["pool", "--pool_stages=[2]"], "above 0 and up to 1"),
    "pre-training without a pool": (["pretrain", "--config=iql_omg"], "omg pool --env-config=foraging"),
    "an unknown scripted policy as agent": (["evaluate", "nearest_foot", "--pool=rules"], "nearest_food"),
    "two scripted policies as agent": (["evaluate", "nearest_food", "slow", "--pool=rules"], "one scripted policy"),
    "crossplay of one": (["crossplay", "nearest_food"], "two or more"),
    "crossplay with an unknown policy": (["crossplay", "nearest_foot", "slow"], "nearest_food"),
    "adapt without a model": (["adapt"], "adapt needs a model"),
    "a workflow without a name": (["workflow"], "name of a workflow"),
    "an unknown workflow": (["workflow", "hop_pluss"], "Did you mean 'hop_plus'"),
    "a workflow with settings": (["workflow", "hop_plus", "--lr=1"], "--lr has no effect here"),
    "no scripted policies": (["--config=ppo", "--env-config=simple_spread", "--pool=rules"], "no scripted policies"),
    "goals not learned yet": (["--config=hop_plus", "--env-config=stag_hunt"], "omg pretrain --config=hop_plus"),
    "planning in Python": (["--config=hop", "--env-config=pettingzoo"], "plans in the compiled environment"),
    "planning under partial sight": (["--config=hop", "--env_args.sight=2"], "--plan_from_state=true"),
    "a search without simulations": (["--config=hop", "--env-config=stag_hunt", "--simulations=0"], "1 or more"),
    "a planner that does not plan": (["--config=iql", "--mac=hop_mac"], "do not go together"),
    "a team learner and a pool": (["--config=vdn", "--pool=rules"], "seat a group that learns together"),
    "a planner in the pool": (["pool", "--pool_algs=[hop]"], "plans in the environment itself"),
    "more than prosocial": (["--config=ppo", "--prosocial=2"], "prosocial is 2.0; it goes from 0 to 1"),
    "a workflow without variants": (["workflow", "foraging", "--maps=[8m]"], "--maps has no effect here"),
    "two workflows": (["workflow", "foraging", "battle"], "name of a workflow"),
    "an unknown map": (["workflow", "battle", "--maps=[8n]", "--budget=demo"], "8m"),
    "maps that are no list": (["workflow", "battle", "--maps=8m", "--budget=demo"], "--maps takes a list"),
    "a misspelt workflow": (["workflow", "forage", "--budget=demo"], "foraging"),
    "an unknown budget": (["workflow", "foraging", "--budget=huge"], "demo, small, paper"),
    "the options of a workflow": (
        ["workflow", "foraging", "--lr=1"],
        "--budget, --engine, --gpus_per_run, --jobs, --local_results_path, --ray_address, --run_dir",
    ),
    "no jobs": (["workflow", "foraging", "--jobs=0"], "1 or more"),
    "settings of omg list": (["list", "--lr=1"], "--lr has no effect here"),
    "an unknown shell": (["completion", "fish"], "omg completion bash"),
}


@pytest.mark.parametrize("case", sorted(OTHER_VERBS))
def test_bad_input_to_other_verbs_is_answered_with_one_sentence(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, complaint = OTHER_VERBS[case]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.json"))


def test_whether_a_folder_can_be_created_is_tried_under_another_name(tmp_path, monkeypatch):
    """Other processes may create the folder, or its parent, at the same moment."""
    tried, mkdir = [], os.mkdir
    monkeypatch.setattr(
        os, "mkdir", lambda path, *rest, **named: (tried.append(Path(path)), mkdir(path, *rest, **named))
    )
    assert check_writable(tmp_path / "runs" / "one") == tmp_path / "runs" / "one"
    assert [path.parent for path in tried] == [tmp_path]
    assert tried[0].name != "runs"
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert main([*QUICK, f"--run_dir={blocked / 'run'}"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    # Root may write anywhere, so permission is tested by what the check asks the system.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main([*QUICK, f"--run_dir={tmp_path / 'run'}"]) == 2
    assert "no permission" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_not_overwritten(run_dir, capsys):
    assert main([*QUICK, f"--run_dir={run_dir}"]) == 2
    assert "--resume" in capsys.readouterr().err


@pytest.fixture
def checkpoint(run_dir, tmp_path):
    """A copy of a complete checkpoint, to be damaged."""
    import shutil

    return Path(shutil.copytree(run_dir / "checkpoints/200", tmp_path / "200"))


def truncate(folder):
    file = folder / "agent.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def alter(folder):
    file = folder / "agent.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def remove(folder):
    (folder / "agent.safetensors").unlink()


def forge(folder):
    file = folder / "checkpoint.json"
    file.write_text(file.read_text().replace('"updates": 169', '"updates": 170'))


def truncate_manifest(folder):
    file = folder / "checkpoint.json"
    file.write_text(file.read_text()[:-20])


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (truncate, "truncated or altered"),
        (alter, "truncated or altered"),
        (remove, "is missing"),
        (forge, "was altered"),
        (truncate_manifest, "missing or truncated"),
    ],
)
def test_a_damaged_checkpoint_is_refused(checkpoint, damage, complaint, capsys):
    damage(checkpoint)
    assert main(["evaluate", f"--checkpoint_path={checkpoint}"]) == 2
    assert complaint in capsys.readouterr().err


def test_another_architecture_is_refused_with_both_shapes(run_dir, capsys):
    assert main(["evaluate", f"--checkpoint_path={run_dir}", "--rnn_hidden_dim=16"]) == 2
    said = capsys.readouterr().err
    assert ", 8)" in said
    assert ", 16)" in said


def test_a_start_from_another_algorithm_is_refused_before_a_folder_exists(run_dir, tmp_path, capsys):
    words = [*QUICK, "--config=qmix", f"--checkpoint_path={run_dir}", "--t_max=260", f"--run_dir={tmp_path / 'r'}"]
    assert main(words) == 2
    assert "another architecture" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_main_py_and_the_module_run_the_same_program():
    root = Path(__file__).parent.parent
    outputs = [
        subprocess.run([sys.executable, *program, "list"], cwd=root, capture_output=True, text=True, check=True).stdout
        for program in (["main.py"], ["-m", "omg"])
    ]
    assert outputs[0] == outputs[1]
    assert "foraging" in outputs[0]


@pytest.mark.slow
def test_debug_stops_at_the_first_loss_that_is_not_finite(tmp_path, capsys):
    assert main([*QUICK, f"--run_dir={tmp_path / 'r'}", "--debug", "--reward_scale=1e30"]) == 2
    said = capsys.readouterr().err
    assert "not finite at 50 steps" in said
    assert "loss" in said


def test_jobs_in_parallel_end_with_the_worst_status(tmp_path):
    """Each in a process of its own, its output in a file; one that fails does not stop those that run beside it."""

    def stage(title, *after, **settings):
        return Stage(title, Command("list", updates=list(settings.items())), tmp_path / title, after)

    state: dict = {}
    assert run_jobs([stage("good")], Engine(2), tmp_path, state, lambda job: 1) == 0
    assert "foraging" in (tmp_path / "good.log").read_text()
    assert state["good"] == {"words": ["list"], "done": True}
    jobs = [stage("good"), stage("bad", nonsense=1), stage("beside"), stage("after_bad", "bad")]
    assert run_jobs(jobs, Engine(2), tmp_path, state, lambda job: 1) == 2
    assert "nonsense" in (tmp_path / "bad.log").read_text()
    assert {title: entry["done"] for title, entry in state.items()} == {"good": True, "bad": False, "beside": True}
    assert json.loads((tmp_path / "workflow.json").read_text()) == state
    assert not (tmp_path / "after_bad.log").exists()


def test_a_job_that_fails_stops_only_the_jobs_that_need_it(tmp_path, capsys):
    def stage(title, *after):
        return Stage(title, Command("list"), tmp_path / title, after)

    def run(job):
        ran.append(job.title)
        if job.title == "wrong":
            raise UserError("no such thing.")
        if job.title == "missing":
            (tmp_path / "gone.ttf").read_bytes()
        return {"bad": 3, "stopped": 130}.get(job.title, 0)

    ran: list[str] = []
    jobs = [stage("bad"), stage("needs_bad", "bad"), stage("wrong"), stage("missing"), stage("fine")]
    jobs.append(stage("needs_needs", "needs_bad"))
    assert run_jobs(jobs, Engine(1), tmp_path, {}, run) == 3
    assert ran == ["bad", "wrong", "missing", "fine"]
    said = " ".join(capsys.readouterr().err.split())
    assert "not finished: bad, missing, needs_bad, needs_needs, wrong." in said
    assert "wrong: no such thing." in said
    assert f"missing: the system said: No such file or directory ({tmp_path / 'gone.ttf'})." in said
    ran.clear()
    assert run_jobs([stage("stopped"), stage("fine")], Engine(1), tmp_path, {}, run) == 130
    assert ran == ["stopped"]


@pytest.mark.parametrize(("map_name", "each_seat"), [("8m", 16), ("3s_vs_5z", 40)])
def test_a_comparison_on_battle_has_about_as_many_parallel_environments_on_every_map(map_name, each_seat, tmp_path):
    content = workflow.read("battle")
    plan = workflow.plan_of("battle", content, workflow.budget_of(content, "paper"), tmp_path, map_name)
    training = [stage.command for stage in plan.stages if stage.command.verb == "train"]
    assert len(training) == 5
    for command in training:
        assert command.get("batch_size_run") == each_seat
        assert command.get("env_args.map_name") == map_name

"""The command line as a person meets it: runs, their files, evaluation, and what bad input gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from omg.cli import main
from omg.reproducing import BUDGETS, Comparison, Stage, stages
from omg.reproducing import _side_by_side as side_by_side
from omg.utils import checkpoints

SMALL = ["--rnn_hidden_dim=8", "--use_tensorboard=false"]
QUICK = [*SMALL, "--config=vdn", "--env-config=climbing", "--t_max=200", "--test_interval=100", "--log_interval=50"]
FORAGING = [*SMALL, "--config=iql", "--env-config=foraging", "--length_buckets=1", "--batch_size=4", "--t_max=300"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished run, for the tests that only look at it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    words = [*QUICK, f"--run_dir={folder}", "--use_tensorboard=true", "--save_model_interval=50"]
    assert main(words) == 0
    return folder


def test_a_run_leaves_its_files(run_dir):
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


def test_logged_points_rise_and_hold_tests(run_dir):
    points = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [p["t_env"] for p in points]
    assert steps == sorted(set(steps))
    assert [p["t_env"] for p in points if "test_return_mean" in p] == [0, 100, 200]
    assert all("loss" in p for p in points if p["t_env"] >= 50)


def test_the_newest_checkpoints_stay(run_dir):
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


def test_a_saved_model_is_not_given_another_configuration(run_dir, capsys):
    assert main(["evaluate", f"--checkpoint_path={run_dir}", "--config=qmix"]) == 2
    assert "has no place here" in capsys.readouterr().err
    assert main(["evaluate", f"--checkpoint_path={run_dir}", "--load_step=last"]) == 2
    assert "load_step takes a whole number" in capsys.readouterr().err


def test_load_step_picks_the_nearest_checkpoint(run_dir):
    assert checkpoints.find(run_dir, 120).t_env == 100
    assert checkpoints.find(run_dir, 0).t_env == 200


def test_a_new_run_starts_from_a_saved_model(run_dir, tmp_path):
    words = [*QUICK, f"--run_dir={tmp_path / 'next'}", f"--checkpoint_path={run_dir}", "--t_max=260"]
    assert main(words) == 0
    points = [json.loads(line) for line in (tmp_path / "next/metrics.jsonl").read_text().splitlines()]
    assert points[0]["t_env"] == 200
    assert points[-1]["t_env"] >= 260
    trained = json.loads((run_dir / "summary.json").read_text())
    assert points[0]["test_return_mean"] == trained["test_return_mean"]


def test_several_seeds_are_reported_one_by_one_and_together(tmp_path):
    assert main([*QUICK, f"--run_dir={tmp_path / 'r'}", "--seeds=3", "--seed=5", "--save_model=false"]) == 0
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert [s["seed"] for s in summary["seeds"]] == [5, 6, 7]
    mean = sum(s["test_return_mean"] for s in summary["seeds"]) / 3
    assert summary["test_return_mean"] == pytest.approx(mean)


def test_a_replay_is_a_moving_picture(tmp_path):
    from PIL import Image

    words = [*FORAGING, f"--run_dir={tmp_path / 'r'}", "--save_replay", "--test_interval=1000", "--test_nepisode=4"]
    assert main(words) == 0
    with Image.open(tmp_path / "r/replay.gif") as picture:
        assert picture.n_frames > 1


def test_print_config_and_list_and_help(capsys):
    assert main(["print_config", "--config=qmix", "--env-config=two_step"]) == 0
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "qmix" in out
    assert "two_step" in out
    assert main(["--help"]) == 0
    assert "batch_size_run" in capsys.readouterr().out


def test_bench_prints_the_promised_keys(capsys, monkeypatch):
    monkeypatch.setattr("omg.bench.SECONDS", 0.05)
    assert main(["bench", "--json", *SMALL, "--config=vdn", "--env-config=climbing", "--bench_worlds=4"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for key in ("env_steps_per_second_env", "env_steps_per_second_train", "updates_per_second"):
        assert result[key] > 0


def test_what_can_be_mended_is_mended_and_said(tmp_path, capsys):
    words = [*QUICK, "--use_cuda", "--batch_size_run=3", "--test_nepisode=7", f"--run_dir={tmp_path / 'r'}"]
    assert main([*words, "--buffer_size=50", "--save_model=false"]) == 0
    said = capsys.readouterr().err
    assert "no GPU here" in said
    config = yaml.safe_load((tmp_path / "r/config.yaml").read_text())
    assert (config["test_nepisode"], config["buffer_size"]) == (6, 48)


BAD = {
    "unknown config": (["--config=qmxi"], "qmix"),
    "unknown world": (["--env-config=forage"], "foraging"),
    "unknown key": (["--bach_size=3"], "batch_size"),
    "unknown flag": (["--save_repla"], "save_replay"),
    "unknown world setting": (["with", "env_args.gridsize=9"], "grid_size"),
    "unknown learner": (["--learner=q_lerner"], "q_learner"),
    "wrong type": (["--t_max=soon"], "t_max takes a whole number"),
    "wrong type inside": (["with", "env_args.food=many"], "env_args.food takes a whole number"),
    "batch larger than buffer": (["--batch_size=99", "--buffer_size=50"], "batch_size (99)"),
    "nothing to do": (["--t_max=0"], "t_max is 0"),
    "less than nothing": (["--t_max=-5"], "t_max is -5"),
    "no checkpoint there": (["--checkpoint_path=nowhere"], "no such folder"),
    "buffer too large": (["--buffer_size=2000000000", "--buffer_gib=1000000"], "largest that fits"),
    "no picture of that": (["--env-config=climbing", "--save_replay"], "without --save_replay"),
    "no MongoDB client": (["--env-config=climbing", "--mongo_url=mongodb://localhost"], "omg-marl[mongo]"),
    "resume what": (["--resume"], "--run_dir=DIR"),
    "an impossible board": (["with", "env_args.food=50"], "at most"),
    "a continuous world": (["--env-config=jaxmarl", "with", "env_args.name=MPE_simple_facmac_v1"], "discrete"),
    "no pool yet": (["--config=iql_am"], "omg pool --env-config=foraging"),
    "a team without the word for it": (["--config=1iql1iql_omg"], "--multi_algs"),
    "a team that is none": (["--config=1iql1qmxi", "--multi_algs"], "Did you mean 'qmix'"),
    "a team too large": (["--config=4iql3qmix1iql_am", "--multi_algs"], "4 + 3 + 1 = 8 agents, but foraging has 2"),
    "a team whose learner has no seat": (["--config=1iql1iql_am", "--multi_algs", "--train_alg=vdn"], "no seat"),
    "a team learner among others": (["--config=1iql1qmix", "--multi_algs"], "learns for a whole team"),
    "an unknown subgoal mode": (["--config=iql_omg", "--subgoal_mode=optimal"], "subgoal_mode takes 'optimistic'"),
    "an unknown JaxMARL world": (["--env-config=jaxmarl", "with", "env_args.name=MPE_simple_sprea_v3"], "spread"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_gets_one_sentence_and_leaves_nothing(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, complaint = BAD[case]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


ELSEWHERE = {
    "a pool of what": (["pool", "list"], "omg pool show"),
    "a pool that is not there": (["pool", "show"], "there is no pool"),
    "a rule that is none": (["pool", "--pool_rules=[nearest_foot]"], "nearest_food"),
    "seen and unseen": (["pool", "--pool_algs=[iql]", "--pool_test_algs=[iql]"], "cannot both train and be unseen"),
    "a modeller in the pool": (["pool", "--pool_algs=[iql_omg]"], "take iql"),
    "stages beyond the end": (["pool", "--pool_stages=[2]"], "above 0 and up to 1"),
    "states of whom": (["pretrain", "--config=iql_omg"], "omg pool --env-config=foraging"),
    "crossplay of one": (["crossplay", "nearest_food"], "two or more"),
    "crossplay with nobody": (["crossplay", "nearest_foot", "slow"], "nearest_food"),
    "adapt whom": (["adapt"], "adapt needs a model"),
    "phases of what": (["phases"], "name of a list"),
    "phases that are not there": (["phases", "hop_pluss"], "hop_plus"),
    "phases and settings": (["phases", "hop_plus", "--lr=1"], "stands in its YAML"),
    "rules of no world": (["--config=hop", "--env-config=climbing", "--pool=rules"], "no written rules"),
    "goals not learned yet": (["--config=hop_plus", "--env-config=stag_hunt"], "omg pretrain --config=hop_plus"),
    "planning out there": (["--config=hop", "--env-config=pettingzoo"], "compiled world"),
    "a search without nodes": (["--config=hop", "--env-config=stag_hunt", "--simulations=0"], "1 or more"),
    "a planner that does not plan": (["--config=iql", "--mac=hop_mac"], "do not go together"),
    "no planner among others": (["--config=ppo", "--mac=basic_mac", "--pool=rules"], "takes no pool"),
    "a planner in the pool": (["pool", "--pool_algs=[hop]"], "plans in the world"),
    "more than prosocial": (["--config=ppo", "--prosocial=2"], "from 0"),
    "reproduce what": (["reproduce"], "takes a world"),
    "reproduce a variant of it": (["reproduce", "foraging", "8m"], "no variants"),
    "reproduce on no such map": (["reproduce", "battle", "8n", "--budget=demo"], "8m"),
    "reproduce elsewhere": (["reproduce", "forage", "--budget=demo"], "foraging"),
    "reproduce for how much": (["reproduce", "foraging", "--budget=huge"], "demo, small, paper"),
    "reproduce what else": (["reproduce", "foraging", "--lr=1"], "--budget, --jobs and --run_dir"),
    "reproduce how many at once": (["reproduce", "foraging", "--jobs=0"], "1 or more"),
}


@pytest.mark.parametrize("case", sorted(ELSEWHERE))
def test_bad_input_to_other_verbs_gets_one_sentence(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, complaint = ELSEWHERE[case]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.json"))


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
    """A copy of a whole checkpoint, to be damaged."""
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


def cut_manifest(folder):
    file = folder / "checkpoint.json"
    file.write_text(file.read_text()[:-20])


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (truncate, "cut off or altered"),
        (alter, "cut off or altered"),
        (remove, "is missing"),
        (forge, "was altered"),
        (cut_manifest, "missing or cut off"),
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


def test_training_on_from_another_algorithm_is_refused_before_a_folder_exists(run_dir, tmp_path, capsys):
    words = [*QUICK, "--config=qmix", f"--checkpoint_path={run_dir}", "--t_max=260", f"--run_dir={tmp_path / 'r'}"]
    assert main(words) == 2
    assert "another architecture" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_main_py_and_the_module_are_the_same_door():
    root = Path(__file__).parent.parent
    outputs = [
        subprocess.run([sys.executable, *door, "list"], cwd=root, capture_output=True, text=True, check=True).stdout
        for door in (["main.py"], ["-m", "omg"])
    ]
    assert outputs[0] == outputs[1]
    assert "foraging" in outputs[0]


def test_debug_stops_at_the_first_not_a_number(tmp_path, capsys):
    assert main([*QUICK, f"--run_dir={tmp_path / 'r'}", "--debug", "--gamma=.nan"]) == 2
    assert "not a number" in capsys.readouterr().err


def test_stages_side_by_side_end_with_the_worst_status(tmp_path):
    """Each in a process of its own, its output in a file; one that fails does not keep the others from ending."""
    good, bad = Stage("good one", ["list"], tmp_path / "never"), Stage("bad one", ["--nonsense"], tmp_path / "never")
    assert side_by_side([[good]], 2, tmp_path) == 0
    assert "foraging" in (tmp_path / "good_one.log").read_text()
    assert side_by_side([[bad, good], [good]], 2, tmp_path) == 2
    assert "nonsense" in (tmp_path / "bad_one.log").read_text()


@pytest.mark.parametrize(("map_name", "each_seat"), [("8m", 4), ("3s_vs_5z", 8)])
def test_a_comparison_on_battle_plays_about_as_many_worlds_on_every_map(map_name, each_seat, tmp_path):
    _, methods = stages(Comparison("battle", map_name, tmp_path), BUDGETS["paper"])
    for training, _ in methods:
        sizes = [word for word in training.words if word.startswith("--batch_size_run=")]
        assert sizes[-1] == f"--batch_size_run={each_seat}", "the last one counts"

"""What a new user meets on the first day, one test per defect that was reported (issue 12)."""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import omg
from omg import artifacts, config
from omg.build import build
from omg.cli import main
from omg.commands.adapt import choose_co_players
from omg.commands.adapt import show as show_adaptation
from omg.commands.stages import plan_of
from omg.envs import MultiAgentEnv, Spec, Timestep, checked, make, trust
from omg.envs.host import HostEnv
from omg.evaluation import report
from omg.evaluation.encounters import Result
from omg.evaluation.statistics import estimate
from omg.modules.am import AgentModel, Inferred, check_model
from omg.modules.am.none_am import NoSettings
from omg.opponents.pool import Member, Pool
from omg.training.loop import equally_often
from omg.utils import checkpoints, files, plugins
from omg.utils.logging import compiling
from omg.utils.settings import UserError
from tests.helpers import configuration, interrupt_at, or_slow

ROOT = Path(__file__).parent.parent
TINY = [
    "--rnn_hidden_dim=4", "--batch_size=2", "--buffer_size=16", "--batch_size_run=2", "--length_buckets=1",
    "--test_nepisode=20", "--t_max=60", "--log_interval=20", "--test_interval=40", "--save_model_interval=30",
]  # fmt: skip
TWO_STEP = ["train", "--config=iql", "--env-config=two_step", *TINY, "--use_tensorboard=false"]


def said(words):
    """Runs a command; its status, and what it printed on stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = main(words)
    return status, errors.getvalue()


def refusal(words):
    """The single sentence with which a command is refused."""
    status, text = said(words)
    assert status == 2, text
    *notices, sentence = text.splitlines()
    assert sentence.startswith("omg: ")
    assert not any(line.startswith(("omg: ", "Traceback", " ")) for line in notices), "one line, no traceback"
    return sentence


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(folder):
    """What a run logged, without the time."""
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in point.items() if name != "seconds"} for point in points]


class Tested:
    """Counts the episodes of every test of a training run."""

    def __init__(self, monkeypatch):
        from omg.training import trainer

        self.episodes, summarise = [], trainer.summarise

        def counted(spec, stats, n_seeds):
            self.episodes.append(stats.lengths.shape[-1])
            return summarise(spec, stats, n_seeds)

        monkeypatch.setattr(trainer, "summarise", counted)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A finished run on the two-step game, started by the idempotent command."""
    folder = tmp_path_factory.mktemp("first_day") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        tested = Tested(monkeypatch)
        status, text = said([*TWO_STEP, f"--run_dir={folder}", "--resume"])
    assert status == 0, text
    assert tested.episodes == [20] * len(tested.episodes)
    assert len(tested.episodes) == 3
    assert "compiling…" in text
    return folder


@pytest.fixture(scope="module")
def with_partners(undisturbed):
    """Two seeds of one agent among the team of the run above, with TensorBoard."""
    folder = undisturbed.parent / "with_partners"
    words = ["train", "--config=iql", "--env-config=two_step", *TINY, f"--pool={undisturbed}", f"--run_dir={folder}"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        tested = Tested(monkeypatch)
        status, text = said([*words, "--seed=3", "--seeds=2"])
    assert status == 0, text
    assert tested.episodes == [20] * len(tested.episodes)
    assert tested.episodes
    return folder


# --- 1. scripted policies by name


def test_pool_rules_choose_the_scripted_policies_of_a_run():
    chosen = {"pool_rules": ["always_stag"], "pool_test_rules": ["random", "switcher"]}
    settings = configuration("iql", "stag_hunt", pool="rules", **chosen)
    members = [(m.name, m.split) for m in artifacts.scripted_pool(settings).members]
    assert members == [("always_stag", "train"), ("random", "non_homologue"), ("switcher", "non_homologue")]
    (opponents,) = build(settings).loop.runner.opponents
    assert [group.size for group in opponents.groups] == [1], "the run seats only the policy that was named"
    with pytest.raises(UserError, match=r"'always_stg'\. Did you mean 'always_stag'"):
        artifacts.scripted_pool(settings | {"pool_rules": ["always_stg"]})


def test_adapt_finds_every_scripted_co_player_in_the_pool_of_scripted_policies():
    settings = configuration("iql", "stag_hunt", pool="rules")
    env = make("stag_hunt")
    (found,) = choose_co_players(env, settings, ["always_stag"])
    assert found.names == ("always_stag",)
    everyone = {name for others in choose_co_players(env, settings, None) for name in others.names}
    assert {"always_stag", "always_hare", "random", "tit_for_tat"} <= everyone
    with pytest.raises(UserError, match=r"no co-player always_stg.*always_stag"):
        choose_co_players(env, settings, ["always_stg"])


# --- 2., 9. and 12. one idempotent command


def test_the_same_command_leaves_a_finished_run_as_it_is(undisturbed):
    before = contents(undisturbed)
    for words in ([*TWO_STEP, "--resume"], ["train", "--resume"], [*TWO_STEP, "--resume", "--keep_checkpoints=1"]):
        status, text = said([*words, f"--run_dir={undisturbed}"])
        assert status == 0
        assert "is finished: nothing to do" in text
    assert contents(undisturbed) == before


def test_a_run_of_an_earlier_version_has_the_defaults_of_settings_that_it_lacks(undisturbed, tmp_path):
    run = shutil.copytree(undisturbed, tmp_path / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings.pop("obs_relative") is False
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    status, text = said([*TWO_STEP, "--resume", f"--run_dir={run}"])
    assert status == 0
    assert "is finished: nothing to do" in text
    refused = refusal([*TWO_STEP, "--resume", f"--run_dir={run}", "--obs_relative=true"])
    assert "obs_relative (False → True)" in refused


def test_settings_that_differ_are_refused_by_name(undisturbed):
    before = contents(undisturbed)
    for words in ([*TWO_STEP, "--lr=0.1"], ["train", "--lr=0.1"]):
        text = refusal([*words, "--resume", f"--run_dir={undisturbed}"])
        assert "lr (0.0005 → 0.1)" in text
        assert "gamma" not in text
    for word, key in (("--config=vdn", "mixer"), ("--env-config=climbing", "env_args")):
        assert key in refusal([*TWO_STEP, word, "--resume", f"--run_dir={undisturbed}"])
    assert "add --resume" in refusal([*TWO_STEP, f"--run_dir={undisturbed}"])
    assert contents(undisturbed) == before


def test_there_is_nothing_to_resume_without_an_algorithm(tmp_path):
    assert "no run to resume" in refusal(["train", "--resume", f"--run_dir={tmp_path / 'nothing'}"])
    assert "add --run_dir" in refusal(["train", "--resume"])
    assert not (tmp_path / "nothing").exists()


class Killed(BaseException):
    """The process ends without a chance to save."""


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_run_stopped_between_two_logged_points_logs_the_same_numbers(undisturbed, tmp_path, monkeypatch, how):
    """Interrupted between the points at 20 and 40 steps; or killed after 52, with a checkpoint at about 30 steps."""
    folder = tmp_path / "run"
    command = [*TWO_STEP, f"--run_dir={folder}", "--resume"]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 28 if how == "interrupted" else 52)
        if how == "interrupted":
            assert said(command)[0] == 130
        else:
            patch.setattr("signal.raise_signal", _kill)
            with pytest.raises(Killed):
                main(command)
    saved_at = checkpoints.find(folder).t_env
    assert 20 < saved_at < 40
    assert saved_at % 20, "not at a logged point"
    before = (folder / "config.yaml").stat()
    status, text = said(command)
    assert status == 0, text
    after = (folder / "config.yaml").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino), "config.yaml is not rewritten"
    assert rows(folder) == rows(undisturbed)
    one, two = (checkpoints.find(f).manifest for f in (folder, undisturbed))
    assert one["files"] == two["files"]
    changing = ("train_seconds", "wall_seconds")
    assert {k: v for k, v in one["counters"].items() if k not in changing} == {
        k: v for k, v in two["counters"].items() if k not in changing
    }


def _kill(*_):
    raise Killed


def test_a_file_keeps_its_content_when_writing_the_new_one_fails(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    files.write_text(path, "old")

    def full(*_):
        raise OSError("no space left on device")

    for place, name in ((Path, "replace"), (os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(OSError, match="no space"):
                files.write_text(path, "new")
        assert path.read_text() == "old"
    files.write_text(path, "new")
    assert path.read_text() == "new"


# --- 3. the user's own code


QUICK = {
    "train": ["--t_max=60", "--test_nepisode=4", "--use_tensorboard=false", "--rnn_hidden_dim=8", "--batch_size=2",
              "--buffer_size=16", "--length_buckets=1"],
    "evaluate": ["--test_nepisode=4"],
    "crossplay": ["--test_nepisode=4"],
    "adapt": ["--test_nepisode=4", "--adapt_episodes=2"],
}  # fmt: skip


def start(words, folder):
    """`omg` as installed: the current folder is not on Python's path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    command = [sys.executable, "-P", "-m", "omg", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize(
    "page", or_slow("add-an-environment", slow=["add-an-agent-model", "add-an-algorithm", "add-a-scripted-policy"])
)
def test_the_commands_of_a_guide_run_in_an_empty_folder(page, tmp_path):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for name, content in re.findall(r"`(\w+\.(?:py|yaml))`:\n```\w+\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content)
    assert list(tmp_path.glob("*.py"))
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    shell = "".join(block for language, block in blocks if language in ("", "sh"))
    lines = [line for line in shell.splitlines() if line.startswith("omg ")]
    assert lines
    assert any("--import" in line for line in lines)
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        asks = "--help" in words
        ran = start(words if asks else [*words, *QUICK[words[0]]], tmp_path)
        assert ran.returncode == 0, f"{line}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr
        if not asks:
            assert Path(tmp_path / ran.stdout.splitlines()[-1]).is_dir(), "the last line is the folder of the results"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module in the current folder that registers an environment; afterwards everything is forgotten."""
    from omg.envs import REGISTRY

    code = "from omg.envs import REGISTRY, make\nREGISTRY['mine'] = lambda args: make('climbing')\n"
    (tmp_path / "my_plugin.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(ROOT))])
    monkeypatch.setattr(plugins, "_loaded", [])
    yield tmp_path
    REGISTRY.pop("mine", None)
    sys.modules.pop("my_plugin", None)


def test_import_registers_a_module_of_the_current_folder(plugin):
    with pytest.raises(UserError, match="unknown environment 'mine'"):
        make("mine")
    plugins.load_plugins(["my_plugin"])
    assert make("mine").spec.n_actions == 3
    assert plugins.loaded() == ("my_plugin",)
    for name, complaint in (("my_plugn", "there is no module my_plugn"), ("needs", "needs the module no_such_package")):
        (plugin / "needs.py").write_text("import no_such_package")
        assert complaint in refusal(["train", f"--import={name}", "--help"])


def test_installed_packages_register_plugins_by_entry_point(plugin, monkeypatch):
    asked = []

    def entry_points(group):
        asked.append(group)
        return [EntryPoint("mine", "my_plugin", group)]

    monkeypatch.syspath_prepend(str(plugin))
    monkeypatch.setattr(plugins, "entry_points", entry_points)
    plugins.load_plugins()
    plugins.load_plugins()
    assert asked == ["omg.plugins"], "once per process"
    assert make("mine").spec.n_actions == 3


# --- 4. environments have different names


def test_environments_with_different_settings_have_different_folders(tmp_path):
    variants = [("battle", {"env_args__map_name": name}) for name in ("3m", "8m")]
    variants += [("foraging", {}), ("foraging", {"env_args__food": 1}), ("foraging", {"env_args__food": 2})]
    variants += [(name, {}) for name in ("two_step", "climbing", "penalty", "prisoners_dilemma", "chicken")]
    configs = [configuration("iql", env, **updates) for env, updates in variants]
    labels = [config.env_label(c) for c in configs]
    assert len(set(labels)) == len(labels)
    assert len({artifacts.pool_folder(c) for c in configs}) == len(configs)
    assert {"foraging", "two_step", "climbing", "foraging__food=1"} <= set(labels)
    for label in labels:
        assert re.fullmatch(r"[\w.=-]+", label), "a plain folder name"


def test_matrix_games_are_recorded_by_their_configuration(undisturbed):
    assert json.loads((undisturbed / "summary.json").read_text())["env"] == "two_step"
    saved = config.read_yaml(undisturbed / "config.yaml")
    assert (saved["env"], saved["env_config"]) == ("matrix_game", "two_step")
    assert config.env_label(saved) == "two_step"


# --- 5. numbers and messages


@pytest.mark.parametrize("envs", [1, 8])
def test_a_test_plays_exactly_as_many_episodes_as_asked_for(envs):
    loop = build(configuration("iql", "two_step", batch_size_run=envs, rnn_hidden_dim=4)).loop
    acting = loop.learner.acting(loop.init().learner)
    for episodes in (1, 20):
        assert loop.evaluate(acting, 0, episodes).lengths.shape == (episodes,)


def test_a_test_with_partners_plays_equally_often_with_every_opponent():
    """20 episodes with 2 opponents in 2 seats, in collections of 8."""
    settings = {"pool": "rules", "pool_rules": ["always_stag", "random"], "pool_test_rules": [], "batch_size_run": 4}
    small = {"env_args__grid_size": 4, "env_args__hunters": 2, "env_args__hares": 1, "env_args__episode_limit": 3}
    loop = build(configuration("iql", "stag_hunt", rnn_hidden_dim=4, **settings, **small)).loop
    stats = loop.evaluate(loop.learner.acting(loop.init().learner), 0, 20)
    assert stats.lengths.shape == (20,)
    _, counts = np.unique(stats.members, axis=0, return_counts=True)
    assert counts.tolist() == [10, 10]


def test_results_with_a_pool_name_the_real_seeds_and_fit_80_columns(with_partners, undisturbed):
    words = ["evaluate", f"--checkpoint_path={with_partners}", f"--pool={undisturbed}", "--test_nepisode=20"]
    status, text = said([*words, f"--run_dir={with_partners.parent / 'evaluated'}"])
    assert status == 0, text
    with (with_partners.parent / "evaluated" / "opponents.csv").open() as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["3", "4"]
    assert json.loads((with_partners.parent / "evaluated" / "summary.json").read_text())["episodes_per_opponent"] == 20
    assert max(map(len, text.splitlines())) <= 80


def test_tables_of_several_splits_and_co_players_fit_80_columns(tmp_path, capsys):
    splits = ("train", "homologue", "non_homologue", "non_homologue")
    pool = Pool(tmp_path, "foraging", {}, [Member(f"{s}-{i}", "iql", s) for i, s in enumerate(splits)])
    rng, measures = np.random.default_rng(0), (*report.SHOWN, "food_eaten")

    def result(member):
        numbers = dict(zip(measures, rng.normal(-12, 3, len(measures)), strict=True))
        return Result(member, numbers | {"win_rate": rng.uniform()}, rng.normal(size=(4, 2)))

    seeds = [[result(member) for member in range(4)] for _ in range(3)]
    report.write(tmp_path, pool, seeds, [5, 6, 7], "iql_omg_with_a_long_name on predator_prey")
    names = ("always_stag", "tit_for_tat", "cooperative_nearest")
    numbers = {m: estimate(rng.normal(-12, 3, 9)) for m in ("gain of the second episode", "goal belief, at the end")}
    show_adaptation("hop_plus on stag_hunt", dict.fromkeys(names, numbers))
    shown = capsys.readouterr().err
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown, "nothing is cut off"
    for word in (*report.SHOWN, *names, "homologue", "non_homologue", "unseen"):
        assert word in shown


@pytest.mark.parametrize("verb", ["train", "pool", "collect", "workflow"])
def test_a_folder_that_cannot_be_made_is_one_sentence(verb, tmp_path):
    words = {
        "train": [*TWO_STEP, "--run_dir=/proc/x/y"],
        "pool": ["pool", "--env-config=two_step", "--pool=/proc/x/y", "--pool_algs=[iql]", "--pool_test_algs=[]"],
        "collect": ["collect", "--env-config=stag_hunt", "--pool=rules", "--run_dir=/proc/x/y"],
        "workflow": ["workflow", "hop_plus", "--run_dir=/proc/x/y"],
    }[verb]
    assert "/proc/x/y" in refusal(words)


@pytest.mark.slow
def test_only_results_and_messages_of_the_program_are_printed(tmp_path):
    """Neither the warning of pkg_resources nor the import messages of JaxMARL."""
    words = ["train", "--config=iql", "--env-config=jaxmarl", *TINY, "--t_max=10", "--test_nepisode=1"]
    ran = start([*words, "--run_dir=run", "--use_tensorboard=false", "with", "env_args.episode_limit=3"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "run\n"
    for line in ran.stderr.splitlines():
        ours = line.startswith(("iql on jaxmarl", "buffer_size", "┌", "│", "├", "└"))
        assert ours, f"not a message of this program: {line}"


def test_the_version_is_that_of_the_changelog():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == omg.__version__


# --- 6. the focal agent's return, and TensorBoard


def test_metrics_of_a_run_with_partners_have_the_focal_return_of_every_seed(with_partners):
    trained = [row for row in rows(with_partners) if "return_mean" in row]
    assert trained
    for row in trained:
        assert len(row["focal_return_mean_seeds"]) == 2
        assert row["focal_return_mean"] == pytest.approx(np.mean(row["focal_return_mean_seeds"]))
    assert any("test_focal_return_mean" in row for row in rows(with_partners))


def test_tensorboard_groups_scalars_and_shows_every_seed(with_partners):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = with_partners / "tensorboard"
    assert {path.name for path in folder.iterdir()} == {"mean", "seed_3", "seed_4"}
    for line in folder.iterdir():
        events = EventAccumulator(str(line))
        events.Reload()
        tags = events.Tags()["scalars"]
        assert {"train/focal_return_mean", "train/return_mean", "test/return_mean"} <= set(tags)
        assert all(tag.startswith(("train/", "test/", "time/")) for tag in tags)
        if line.name != "mean":
            place = ["seed_3", "seed_4"].index(line.name)
            logged = [r["return_mean_seeds"][place] for r in rows(with_partners) if "return_mean" in r]
            np.testing.assert_allclose([e.value for e in events.Scalars("train/return_mean")], logged, rtol=1e-5)


# --- 7. compilation is announced


def test_compilation_is_announced_with_the_seconds_of_the_last_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clock = iter([10.0, 31.0, 50.0, 51.0])
    monkeypatch.setattr("omg.utils.logging.time.perf_counter", lambda: next(clock))
    for expected in ("iql on foraging: compiling…\n", "iql on foraging: compiling… (it took 21 s last time)\n"):
        with compiling("iql on foraging"):
            assert capsys.readouterr().err == expected


# --- 8. files never cause an import


EVIL = {"env": "pettingzoo", "env_args": {"name": "evil"}, "runner": "episode"}


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A current folder with a module `evil`, and a checkpoint, a run, a pool, YAML files that name it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_allowed", set())
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    settings = configuration("iql", "pettingzoo", env_args__name="evil")
    manifest = {"config": settings, "seeds": [1], "counters": {}}
    checkpoints.save(tmp_path / "run" / "checkpoints", 10, {"agent": {"w": np.zeros(1)}}, manifest, 1)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings))
    Pool(tmp_path / "pool", "pettingzoo", {"name": "evil"}, [Member("iql", "iql", "train")]).save()
    (tmp_path / "evil.yaml").write_text(yaml.safe_dump(EVIL))
    (tmp_path / "stages.yaml").write_text("env_config: pettingzoo\nstages:\n- train: iql\n  env_args.name: evil\n")
    shared = {"env_config": "pettingzoo", "settings": {"env_args.name": "evil"}, "stages": [{"train": "iql"}]}
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(shared))
    yield tmp_path
    sys.modules.pop("evil", None)


ATTACKS = {
    "env-config": ["train", "--config=iql", "--env-config=evil.yaml"],
    "with": ["train", "--config=iql", "with", "evil.yaml"],
    "run folder": ["train", "--resume", "--run_dir=run"],
    "checkpoint": ["evaluate", "--checkpoint_path=run"],
    "checkpoint, other name": ["adapt", "--checkpoint_path=run", "--pool=rules"],
    "crossplay": ["crossplay", "run", "run"],
    "workflow, stage": ["workflow", "stages.yaml"],
    "workflow, settings": ["workflow", "shared.yaml"],
}


@pytest.mark.parametrize("words", ATTACKS.values(), ids=ATTACKS)
def test_a_module_that_a_file_names_is_not_imported(evil, words):
    text = refusal(words)
    assert "'evil' is not imported" in text
    assert "--trust" in text
    assert not (evil / "imported").exists()


def test_a_pool_that_names_a_module_does_not_cause_an_import(evil):
    assert "was made for pettingzoo" in refusal(["train", "--config=iql", "--env-config=foraging", "--pool=pool"])
    assert "not imported" in refusal(["pool", "show", "--pool=pool"])
    for words in (["pool", "show", "--pool=pool"], ["train", "--config=iql", "--pool=pool"]):
        assert "not imported" in refusal([*words, "with", "evil.yaml"])
    assert not (evil / "imported").exists()


@pytest.mark.parametrize(
    "words",
    [[*ATTACKS[name], "--trust"] for name in ("env-config", "run folder", "checkpoint", "workflow, stage")]
    + [["train", "--config=iql", "--env-config=pettingzoo", "with", "env_args.name=evil"]],
)
def test_trust_and_a_typed_name_allow_the_import(evil, words):
    status, text = said(words)
    assert status == 2, "this module has no environment"
    assert "not imported" not in text
    assert (evil / "imported").exists()


# --- 10. only the program's own checkpoints are removed


@pytest.mark.parametrize("linked", [False, True])
def test_folders_of_other_origin_survive_the_removal_of_old_checkpoints(tmp_path, linked):
    target = tmp_path / ("elsewhere" if linked else "checkpoints")
    foreign = [target / str(year) / "thesis.txt" for year in (2019, 2020)]
    copied = target / "5" / checkpoints.MANIFEST
    for path in (*foreign, copied):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / checkpoints.MANIFEST).write_text("{}")
    (target / "7").symlink_to(outside)
    folder = tmp_path / "checkpoints"
    if linked:
        folder.symlink_to(target)
    for step in (100, 200, 300):
        checkpoints.save(folder, step, {"agent": {"w": np.zeros(1)}}, {}, keep=1)
    assert all(path.read_text() == "{}" for path in (*foreign, copied, outside / checkpoints.MANIFEST))
    assert (target / "7").is_symlink()
    kept = {int(path.name) for path in target.iterdir() if path.name.isdigit()}
    assert kept - {5, 7, 2019, 2020} == ({100, 200, 300} if linked else {300})
    assert checkpoints.find(folder, load_step=300).t_env == 300
    with pytest.raises(UserError, match="not a checkpoint"):
        checkpoints.save(folder, 2019, {"agent": {"w": np.zeros(1)}}, {}, keep=1)
    assert foreign[0].read_text() == "{}"


# --- 11. names stay inside their folder


def test_pool_members_outside_the_pool_are_refused(tmp_path):
    spec = make("climbing").spec
    architecture = {"rnn_hidden_dim": 4}
    secret = tmp_path / "secret.safetensors"
    mine = Pool(tmp_path / "mine", "matrix_game", {})
    from omg.controllers import BasicMAC

    network = BasicMAC(spec, architecture).init_params(jax.random.key(0))["agent"]
    full = configuration("iql", "climbing", rnn_hidden_dim=4)
    mine.add_network(network, full, algorithm="iql", split="train", seed=1, steps=2)
    (member,) = mine.members
    assert mine.groups(spec, [0])[0].size == 1
    secret.write_bytes((tmp_path / "mine" / str(member.file)).read_bytes())
    (tmp_path / "mine" / "members" / "linked.safetensors").symlink_to(secret)
    entry = {"name": "x", "algorithm": "iql", "split": "train", "architecture": member.architecture}
    for name in ("../secret", secret.with_suffix(""), "members/../../secret", "members/linked"):
        members = [entry | {"file": f"{name}.safetensors", "checksum": member.checksum}]
        content = {"env": "matrix_game", "env_args": {}, "recipe": {}, "members": members}
        (tmp_path / "mine" / "pool.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"outside its folder|plain file name|leads out of"):
            Pool.load(tmp_path / "mine").groups(spec, [0])


@pytest.mark.parametrize("name", ["../secret", "linked", "absolute"])
def test_checkpoint_files_outside_the_checkpoint_are_refused(tmp_path, name):
    folder, secret = tmp_path / "checkpoints", tmp_path / "checkpoints" / "secret.safetensors"
    path = checkpoints.save(folder, 10, {"agent": {"w": np.zeros(1)}}, {}, keep=1)
    secret.write_bytes((path / "agent.safetensors").read_bytes())
    (path / "linked.safetensors").symlink_to(secret)
    name = str(secret) if name == "absolute" else f"{name}.safetensors"
    manifest = json.loads((path / checkpoints.MANIFEST).read_text())
    manifest["files"] = {name: checkpoints.checksum(secret)}
    del manifest["checksum"]
    manifest["checksum"] = checkpoints.digest_of(manifest)
    (path / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"outside its folder|plain file name|leads out of"):
        checkpoints.find(path)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside", ".hidden", "C:outside", ""])
def test_stages_outside_the_folder_of_the_workflow_are_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"outside its folder|plain file name"):
        plan_of("w", {"stages": [{"train": "iql", "name": name}]}, {}, tmp_path, None)
    content = {"env_config": "battle", "stages": [{"train": "iql"}], "variants": {"setting": "env_args.map_name"}}
    with pytest.raises(UserError, match=r"outside its folder|plain file name"):
        plan_of("w", content, {}, tmp_path, name)


def test_a_format_width_in_a_workflow_is_refused_at_once(tmp_path):
    for text in ("{x:>200000000}", "{train_iql:>200000000}", "{0}", "{train_iql.__class__}", "{train_iql!r:>99999999}"):
        stages = [{"train": "iql"}, {"train": "vdn", "checkpoint_path": text}]
        with pytest.raises(UserError, match="names a stage that is not before it"):
            plan_of("w", {"stages": stages}, {}, tmp_path, None)


# --- found by a newcomer


class Broken(MultiAgentEnv):
    """An environment of the user's own; `change` breaks one field of its time steps."""

    def __init__(self, change, game_type="mixed"):
        self.spec, self.change = Spec("broken", 2, 3, 4, 5, 6, game_type), change

    def reset(self, key):
        fields = {
            "obs": jnp.zeros((2, 4)), "state": jnp.zeros(5), "avail_actions": jnp.ones((2, 3), bool),
            "reward": jnp.zeros(2), "terminated": jnp.zeros((), bool), "alive": jnp.ones(2, bool), "info": {},
        }  # fmt: skip
        return jnp.int32(0), Timestep(**(fields | self.change))

    def step(self, state, actions, key):
        return self.reset(key)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"obs": jnp.zeros((2, 9))}, "obs of shape (2, 9); by its spec it is [n_agents, obs_size] = (2, 4)"),
        ({"reward": jnp.zeros(1)}, "reward of shape (1,); by its spec it is [n_agents] = (2,)"),
        ({"state": jnp.zeros(3)}, "[state_size] = (5,)"),
        ({"avail_actions": jnp.ones((2, 7), bool)}, "[n_agents, n_actions] = (2, 3)"),
        ({"terminated": jnp.zeros(1, bool)}, "terminated of shape (1,)"),
    ],
)
def test_an_environment_whose_shapes_contradict_its_spec_is_refused(change, says):
    assert checked(Broken({})).spec.name == "broken"
    with pytest.raises(UserError, match=re.escape(says)):
        checked(Broken(change))


def test_an_environment_without_a_game_type_or_with_a_changing_state_is_refused():
    with pytest.raises(UserError, match="'zero-sum' or 'mixed', not 'general-sum'"):
        checked(Broken({}, "general-sum"))
    env = Broken({})
    env.step = lambda state, actions, key: (jnp.zeros(3), env.reset(key)[1])
    with pytest.raises(UserError, match="step returns a state with other shapes"):
        checked(env)
    env.step = lambda state, actions, key: env.reset(key)[1]
    with pytest.raises(UserError, match="step must return the environment's state and a Timestep"):
        checked(env)
    without_step = type("Without", (Broken,), {"step": MultiAgentEnv.step})
    with pytest.raises(UserError, match="Without must define step"):
        checked(without_step({}))


def test_a_host_environment_of_the_users_own_is_not_traced():
    host = type("Mine", (HostEnv,), {"spec": Spec("mine", 2, 3, 4, 5, 6, "mixed")})()
    assert checked(host) is host


def test_an_agent_model_with_other_shapes_than_it_declares_is_refused():
    class Swapped(AgentModel):
        Settings = NoSettings
        output_size, hidden_size = 3, 5

        def infer(self, params, seen, memory):
            return memory, jnp.zeros((*memory.shape[:-1], 3))

    spec = Spec("test", 2, 3, 4, 5, 6, "mixed")
    wanted = "= (2, 2, 3) and the new memory [batch, seat, hidden_size] = (2, 2, 5)"
    with pytest.raises(UserError, match=re.escape(wanted)):
        check_model(Swapped(spec, 4, {}), 4, 4)
    with pytest.raises(UserError, match="Empty must define infer"):
        check_model(type("Empty", (Swapped,), {"infer": AgentModel.infer})(spec, 4, {}), 4, 4)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (lambda along: along, "infer_all must return Inferred(embedding)"),
        (lambda along: Inferred(along[1:]), "[time, batch, seat, output_size] = (3, 2, 2, 5)"),
        (
            lambda along: Inferred(along, memory=along[0]),
            "[time, batch, seat, hidden_size] = (3, 2, 2, 5); it is (2, 2, 5)",
        ),
        (
            lambda along: Inferred(along, rest=along[0], memory=along),
            "all arrays in log_var and rest must be [time, batch",
        ),
        (lambda along: Inferred(along, rest=along[0]), None),
        (lambda along: Inferred(along, along, {"more": along}, along), None),
    ],
)
def test_what_a_model_infers_along_episodes_is_checked(returned, problem):
    class Mine(AgentModel):
        Settings = NoSettings
        output_size = hidden_size = 5

        def infer(self, params, seen, memory):
            return memory, memory

        def infer_all(self, params, seen, memory):
            return returned(jnp.zeros((len(seen.own), *memory.shape)))

    mine = Mine(Spec("test", 2, 3, 4, 5, 6, "mixed"), 4, {})
    with contextlib.nullcontext() if problem is None else pytest.raises(UserError, match=re.escape(problem)):
        check_model(mine, 4, 4)


def test_a_run_without_any_update_says_so(tmp_path, capsys):
    words = ["train", "--config=iql", "--env-config=two_step", "--t_max=4", "--rnn_hidden_dim=4", "--test_nepisode=2"]
    assert main([*words, f"--run_dir={tmp_path / 'run'}", "--save_model=false", "--use_tensorboard=false"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing was learned: the first update needs 32 episodes, and the run ended after 8" in said


def test_a_missing_import_is_mentioned(capsys):
    for words in (["--env=orchard"], ["--env-config=foraging", "--am_model=mine", "--mac=multi_module_mac"]):
        assert main(["train", "--config=iql", *words]) == 2
        assert "add --import MODULE" in " ".join(capsys.readouterr().err.split())


def test_the_list_shows_the_scripted_policies_of_the_users_own(tmp_path):
    code = "from omg.opponents import SPLITS\nfrom omg.opponents.scripted import Split\n"
    (tmp_path / "runners.py").write_text(code + "SPLITS['corridor'] = Split(('wait',), ('rush',))\n")
    listed = start(["list", "--import", "runners"], tmp_path).stdout
    assert "corridor          training: wait; unseen: rush" in listed


def test_a_short_test_with_a_pool_uses_every_member_and_every_seat():
    """Four members, two seats, two episodes of each in either seat: of four episodes two are in either seat."""
    members = np.tile(np.repeat(np.arange(4), 2), 2)[:, None]
    order = equally_often(members, 2)
    assert sorted(order.tolist()) == list(range(16))
    first = order[:4]
    assert sorted(members[first, 0].tolist()) == [0, 1, 2, 3]
    assert sorted((first // 8).tolist()) == [0, 0, 1, 1]
    assert sorted(members[order[4:8], 0].tolist()) == [0, 1, 2, 3]
    assert sorted(zip(members[order[:8], 0].tolist(), (order[:8] // 8).tolist(), strict=True)) == [
        (member, seat) for member in range(4) for seat in range(2)
    ]

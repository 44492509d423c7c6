"""Settings at the command line: help, version, completion, shipped files. Ranges: `utils/test_settings.py`."""

import subprocess

import jax
import optax
import pytest

from omg import __version__
from omg.build import known_keys, make_learner, resolve
from omg.cli import main, parse
from omg.commands import VERBS
from omg.config import Command, available, lineage, load, read_yaml
from omg.envs import MultiAgentEnv
from tests.helpers import configuration


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_omg_without_a_verb_prints_help_and_starts_nothing(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("omg.commands.run", lambda command: pytest.fail("a command was started"))
    assert main(words) == 0
    shown = capsys.readouterr()
    for verb, text in VERBS.items():
        assert f"  {verb:<14}{text}\n" in shown.out
    assert shown.err == ""
    assert list(tmp_path.iterdir()) == []


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"omg {__version__}\n"


@pytest.mark.parametrize("verb", ["train", "bench"])
def test_help_starts_nothing(verb, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([verb, "--config=ppo", "--help", "--t_max=1"]) == 0
    assert "--ppo_clip=" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(available("algs")))
def test_a_shipped_algorithm_sets_only_keys_that_its_components_read(name):
    keys = lineage(name)[name]
    config, _ = resolve(load(Command(config=name, env_config="two_step")), typed=keys)
    assert set(keys) <= set(config)
    assert all(config[key] == value for key, value in keys.items())


@pytest.mark.parametrize("name", sorted(available("envs")))
def test_a_shipped_environment_sets_only_known_keys(name):
    assert set(read_yaml(available("envs")[name])) <= {*known_keys(), "tuned"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--config=iql", "--hop_beta=abc"], "hop_beta has no effect here"),
        (["--config=ppo", "--double_q=false"], "double_q has no effect here"),
        (["--config=mappo", "--batch_size=4"], "a setting of replay (learners that are not on-policy)"),
        (["--config=hop", "--target_update_interval=9"], "target_update_interval has no effect here"),
        (["--lr=nan"], "lr"),
        (["--lr", "0"], "lr is 0.0; it must be above 0"),
        (["--gamma", "5"], "gamma is 5.0; it goes from 0 to 1"),
        (["--epsilon_start=2"], "epsilon_start is 2.0; it goes from 0 to 1"),
    ],
)
def test_the_program_refuses_a_setting_and_writes_nothing(words, complaint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--env-config=two_step", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_flag_before_the_verb_leaves_the_verb():
    assert parse(["--save_replay", "evaluate", "--checkpoint_path", "x"]) == parse(
        ["evaluate", "--save_replay=true", "--checkpoint_path=x"]
    )


@pytest.mark.parametrize(("optimiser", "state"), [("adam", optax.ScaleByAdamState), ("rmsprop", optax.ScaleByRmsState)])
def test_the_optimiser_of_comas_critic_is_the_one_of_the_setting(optimiser, state, two_step: MultiAgentEnv):
    config = configuration("coma", "two_step", optimiser=optimiser, rnn_hidden_dim=4, critic_hidden_dim=4)
    learner = make_learner(two_step, config)
    opt_state = jax.eval_shape(learner.init, jax.random.key(0)).opt_state
    for network in ("agent", "critic"):
        nodes = jax.tree.leaves(opt_state[network], is_leaf=lambda x: isinstance(x, state))
        assert any(isinstance(node, state) for node in nodes), network


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_is_valid_and_complete(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)
    words = set(script.replace('"', " ").split())
    assert {*VERBS, *available("algs"), *available("envs"), *available("workflows")} <= words
    assert {"--batch_size", "--hop_beta", "--config", "--env-config"} <= words


def test_bash_completes_verbs_algorithms_and_settings(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    def completed(*words):
        typed = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _omg; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        answer = subprocess.run(["bash", "-c", script + ask], text=True, check=True, capture_output=True)
        return set(answer.stdout.split())

    assert "evaluate" in completed("omg", "eval")
    assert completed("omg", "train", "--config", "=", "ppo_o") == {"ppo_omg", "ppo_omg_plus", "ppo_oracle"}
    assert "lbf_7x7" in completed("omg", "benchmark", "lb")
    assert "--hop_beta=" in completed("omg", "train", "--hop_b")

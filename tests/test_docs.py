"""The examples of the documentation, run as they stand there."""

import re
from pathlib import Path

import pytest

from omg.cli import main

ROOT = Path(__file__).parent.parent


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def registries():
    """What an example registers is forgotten afterwards."""
    from omg.envs import REGISTRY as worlds
    from omg.learners import REGISTRY as learners

    before = dict(worlds), dict(learners)
    yield
    for registry, old in zip((worlds, learners), before, strict=True):
        registry.clear()
        registry.update(old)


def run_example(page, tmp_path, option, *words):
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), {"__name__": "example"})
    settings = tmp_path / "mine.yaml"
    settings.write_text(blocks(page, "yaml")[0])
    quick = ["--rnn_hidden_dim=8", "--use_tensorboard=false", "--save_model=false", "--test_nepisode=4"]
    return main([f"--{option}={settings}", f"--run_dir={tmp_path / 'run'}", *quick, *words])


def test_the_new_algorithm_runs(registries, tmp_path, capsys):
    words = ["--env-config=climbing", "--t_max=100", "--temperature=0.2"]
    assert run_example("docs/add-an-algorithm.md", tmp_path, "config", *words) == 0
    assert "name: soft_iql" in (tmp_path / "run/config.yaml").read_text()
    assert main(["--config=iql", "--temprature=1"]) == 2
    assert "temperature" in capsys.readouterr().err


def test_the_new_world_runs(registries, tmp_path):
    words = ["--config=vdn", "--t_max=700", "--length_buckets=1", "with", "env_args.length=8"]
    assert run_example("docs/add-a-world.md", tmp_path, "env-config", *words) == 0
    assert "corridor" in (tmp_path / "run/summary.json").read_text()


def test_the_readmes_python_runs():
    (code,) = blocks("README.md", "python")
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["seen"].obs.shape == (names["world"].spec.n_agents, names["world"].spec.obs_size)


def test_links_and_commands_of_the_documentation_exist():
    from omg.config import VERBS, available
    from omg.utils.teams import parse_team

    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        text = page.read_text()
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
        for verb in re.findall(r"^omg (\w+)", text, re.MULTILINE):
            assert verb in VERBS or verb.startswith("print"), f"{page.name}: omg {verb}"
        mine = {"soft_iql", "corridor", "path/to/soft_iql.yaml", "path/to/corridor.yaml"}
        for kind, option in (("algs", "--config"), ("envs", "--env-config")):
            for name in re.findall(rf"{option}=([\w/.]+)", text):
                known = name in available(kind) or name in mine
                assert known or (kind == "algs" and parse_team(name, available("algs"))), (
                    f"{page.name}: {option}={name}"
                )

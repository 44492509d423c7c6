"""The files of docs/add-an-environment.md, written verbatim into a folder."""

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.config import read_yaml
from omg.envs import REGISTRY, make
from omg.utils.settings import UserError

PAGE = Path(__file__).parents[2] / "docs" / "add-an-environment.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files of the guide in the current folder, and `corridor.py` imported."""
    files = re.findall(r"`(\w+\.\w+)`:\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["corridor.py", "corridor.yaml"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(REGISTRY, "corridor", raising=False)
    importlib.import_module("corridor")
    yield tmp_path
    REGISTRY.pop("corridor")
    sys.modules.pop("corridor")


def test_two_agents_meet_in_the_corridor(folder):
    config = read_yaml(folder / "corridor.yaml")
    env = make(config["env"], **config["env_args"])
    step = jax.jit(env.step)
    state, timestep = env.reset(jax.random.key(0))
    np.testing.assert_allclose(timestep.obs, [[0, 5 / 6], [5 / 6, 0]])
    rewards = []
    for actions in ([2, 0], [2, 0], [2, 1]):
        assert not timestep.terminated
        state, timestep = step(state, jnp.array(actions), jax.random.key(0))
        rewards.append(timestep.reward.tolist())
    assert rewards == [[0, 0], [0, 0], [1, 1]]
    assert timestep.terminated
    with pytest.raises(UserError, match="Did you mean 'length'"):
        make("corridor", lenght=8)


def test_the_tables_have_all_fields_and_their_shapes(folder):
    env = make("corridor", length=8)
    spec = env.spec
    _, timestep = env.reset(jax.random.key(0))
    rows = dict(re.findall(r"^\| `(\w+)` \| (`\[.*?\]`|dictionary of `\[\]`) \|", PAGE.read_text(), re.MULTILINE))
    assert set(rows) == set(timestep._fields)
    for name, shape in rows.items():
        sizes = [getattr(spec, size) for size in re.findall(r"\w+", shape.partition("[")[2])]
        for leaf in jax.tree.leaves(getattr(timestep, name)):
            assert list(leaf.shape) == sizes, name
    described = PAGE.read_text().partition("## Spec")[2].partition("## Timestep")[0]
    for field in spec.__dataclass_fields__:
        assert f"`{field}`" in described

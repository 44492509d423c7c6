"""A module that a configuration names is imported only if the user typed its name or the package is known."""

import importlib
import sys

import jax
import jax.numpy as jnp
import pytest

from omg.components.episode_buffer import make_scheme
from omg.controllers import BasicMAC
from omg.envs import make, trust
from omg.runners import REGISTRY
from omg.runners.workers import Recipe
from omg.utils.settings import UserError

GAME = """
from pathlib import Path

Path("imported").touch()
from mpe2.simple_tag_v3 import parallel_env
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, from which Python imports as in `python -m`, and no permissions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trust, "_allowed", set())
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("on_path", [True, False])
def test_a_module_of_the_current_folder_is_imported_only_if_it_was_allowed(folder, monkeypatch, on_path):
    (folder / "evil.py").write_text(GAME)
    if not on_path:
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    with pytest.raises(UserError, match=r"with env_args.name=evil.*--trust"):
        make("pettingzoo", name="evil")
    assert not (folder / "imported").exists()
    trust.allow("evil")
    importlib.invalidate_caches()
    before = list(sys.path)
    assert make("pettingzoo", name="evil").spec.n_agents == 4
    assert (folder / "imported").exists()
    assert sys.path == before, "later imports do not look in the current folder"


def test_worker_processes_import_the_modules_that_the_user_allowed(folder):
    (folder / "mine.py").write_text(GAME)
    trust.allow("mine")
    importlib.invalidate_caches()
    settings = {"name": "mine", "max_cycles": 3}
    env = make("pettingzoo", **settings)
    (folder / "imported").unlink()
    mac = BasicMAC(env.spec, {"rnn_hidden_dim": 4})
    recipe = Recipe("pettingzoo", settings, 1, trusted=trust.allowed())
    runner = REGISTRY["parallel"](env, mac, *make_scheme(env.spec), 1, recipe, 60.0)
    _, stats = runner.run(jax.jit(mac.init_params)(jax.random.key(0)), jnp.int32(0), jax.random.key(2), False)
    runner.close()
    assert stats.lengths.tolist() == [3]
    assert (folder / "imported").exists(), "the worker imported the module itself"


def test_permission_for_one_module_is_not_permission_for_another(folder):
    trust.allow("mine")
    assert trust.allowed() == ("mine",)
    trust.check("mine")
    for other in ("mine.inner", "min", "other", "os"):
        with pytest.raises(UserError, match="not imported"):
            trust.check(other)


def test_known_packages_need_no_permission_where_they_are_installed(folder):
    trust.check("mpe2.simple_tag_v3")
    trust.check("pettingzoo.butterfly.pistonball_v6")
    assert trust.allowed() == ()


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_file_of_the_current_folder_is_not_taken_for_a_known_package(folder, as_folder):
    path = folder / "magent2" / "__init__.py" if as_folder else folder / "magent2.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(GAME)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="not an installed package"):
        make("pettingzoo", name="magent2")
    with pytest.raises(UserError, match="not an installed package"):
        make("pettingzoo", name="magent2.battle_v4")
    assert not (folder / "imported").exists()


def test_a_file_pettingzoo_in_the_current_folder_is_never_imported(folder, monkeypatch):
    (folder / "pettingzoo.py").write_text(GAME)
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == "pettingzoo"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match="not an installed package"):
        trust.check("pettingzoo.butterfly.pistonball_v6")
    monkeypatch.delitem(sys.modules, "omg.envs.pettingzoo_adapter", raising=False)
    with pytest.raises(UserError, match="hides the package PettingZoo"):
        make("pettingzoo", name="mpe2.simple_tag_v3")
    assert not (folder / "imported").exists()


def test_a_folder_named_site_packages_that_is_the_current_folder_is_refused(tmp_path, monkeypatch):
    here = tmp_path / "site-packages"
    here.mkdir()
    (here / "shimmy.py").write_text("")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    with pytest.raises(UserError, match="not an installed package"):
        trust.check("shimmy.dm_control")


def test_a_known_package_that_is_not_installed_is_named(folder):
    with pytest.raises(UserError, match="meltingpot is not installed: pip install meltingpot"):
        trust.check("meltingpot.x")

"""`make` by environment configuration, JaxMARL's layouts and scenarios by name, and packages that are missing."""

import sys

import jax
import jax.numpy as jnp
import pytest

from omg.config import available, read_yaml
from omg.envs import REGISTRY, make, to_smac
from omg.envs.jaxmarl_adapter import longest_hanabi_game
from omg.utils.settings import UserError


def test_a_configuration_gives_the_defaults_of_its_environment():
    two_step = make("two_step")
    assert two_step.spec.name == "matrix_game"
    assert two_step.spec.episode_limit == 2
    state, _ = jax.jit(two_step.reset)(jax.random.key(0))
    state, _ = two_step.step(state, jnp.array([1, 0]), jax.random.key(0))
    assert two_step.step(state, jnp.array([1, 1]), jax.random.key(0))[1].reward.tolist() == [8, 8]


def test_arguments_override_the_configuration():
    assert make("chicken").spec.episode_limit == 10
    assert make("chicken", rounds=4).spec.episode_limit == 4
    assert to_smac("chicken", 1, rounds=4).episode_limit == 4
    with pytest.raises(UserError, match="round"):
        make("chicken", ronds=4)


@pytest.mark.parametrize("name", sorted(set(available("envs")) - {"sc2", "sc2_beta", "melting_pot"}))
def test_every_configuration_is_an_environment(name):
    config = read_yaml(available("envs")[name])
    spec = make(name).spec
    assert spec == REGISTRY[config["env"]](config["env_args"]).spec


def test_registered_environments_come_before_configurations_of_other_environments(monkeypatch):
    monkeypatch.setitem(REGISTRY, "chicken", lambda env_args: env_args)
    assert make("chicken", length=3) == {"length": 3}


def test_an_unknown_name_lists_configurations_and_registered_environments():
    with pytest.raises(UserError, match=r"unknown environment 'two_stp'. Did you mean 'two_step'.*matrix_game"):
        make("two_stp")


@pytest.mark.parametrize("name", ["overcooked", "overcooked_v2"])
def test_overcooked_takes_layouts_by_name(name):
    from jaxmarl.environments import overcooked_layouts, overcooked_v2_layouts

    layouts = overcooked_layouts if name == "overcooked" else overcooked_v2_layouts
    small, large = (make("jaxmarl", name=name, layout=layout) for layout in ("cramped_room", "counter_circuit"))
    assert small.game.layout == layouts["cramped_room"]
    assert large.game.layout == layouts["counter_circuit"]
    assert small.spec.obs_size < large.spec.obs_size
    with pytest.raises(UserError, match=r"env_args.layout 'cramped_rom'. Did you mean 'cramped_room'.*coord_ring"):
        make("jaxmarl", name=name, layout="cramped_rom")


@pytest.mark.parametrize(("name", "agents"), [("HeuristicEnemySMAX", 5), ("SMAX", 11)])
def test_smax_takes_scenarios_by_name(name, agents):
    env = make("jaxmarl", name=name, scenario="5m_vs_6m")
    assert env.spec.n_agents == agents
    assert env.game.num_enemies == 6
    with pytest.raises(UserError, match=r"env_args.scenario '5m'.*27m_vs_30m"):
        make("jaxmarl", name=name, scenario="5m")


@pytest.mark.parametrize("players", [2, 4])
def test_hanabi_terminates_within_its_default_time_limit(players):
    """The longest games give a hint whenever possible and otherwise discard; then nothing can end them early."""
    env = make("jaxmarl", name="hanabi", num_agents=players)
    hints = jnp.arange(env.spec.n_actions) >= 2 * env.game.hand_size
    discards = jnp.arange(env.spec.n_actions) < env.game.hand_size

    def preferred(timestep):
        preference = 1 + 2 * hints + 1 * discards
        return jnp.where(timestep.avail_actions, preference, 0).argmax(-1)

    @jax.jit
    def length(key):
        state, timestep = jax.jit(env.reset)(key)

        def step(carry, _):
            state, timestep, ended = carry
            state, timestep = env.step(state, preferred(timestep), key)
            return (state, timestep, ended | timestep.terminated), ended

        (_, _, ended), before = jax.lax.scan(step, (state, timestep, False), length=env.spec.episode_limit)
        return ended, (~before).sum()

    ended, steps = length(jax.random.key(0))
    assert ended
    assert 0.8 * env.spec.episode_limit < steps < env.spec.episode_limit
    assert env.spec.episode_limit == longest_hanabi_game(env.game) + 1
    assert make("jaxmarl", name="hanabi", episode_limit=30).spec.episode_limit == 30


@pytest.mark.parametrize(
    ("package", "module", "name", "command"),
    [
        ("jaxmarl", None, "coin_game", "pip install jaxmarl"),
        ("jaxmarl", None, "predator_prey", "pip install jaxmarl"),
        ("pettingzoo", "omg.envs.pettingzoo_adapter", "pettingzoo", "pip install pettingzoo mpe2 "),
        ("meltingpot", None, "melting_pot", "pip install 'shimmy<2.1' dm-meltingpot"),
        ("smac", None, "sc2", "pip install git.https://github.com/oxwhirl/smac.git"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, package, module, name, command):
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    if module:
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(UserError, match=f"needs the package {package}, which is not installed: {command}"):
        make(name)


@pytest.mark.parametrize(
    ("line", "why"), [("import absent", "No module named 'absent'"), ("from json import absent", "cannot import name")]
)
def test_a_package_that_fails_to_import_is_not_called_missing(monkeypatch, tmp_path, line, why):
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "smac"]:
        monkeypatch.delitem(sys.modules, loaded)
    (tmp_path / "smac").mkdir()
    (tmp_path / "smac" / "__init__.py").write_text(line)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=f"smac, which cannot be imported .{why}.*: pip install git"):
        make("sc2")

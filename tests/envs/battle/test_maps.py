"""SMAC's maps have the sizes of SMAC, and errors in map files are reported."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from omg.envs import make
from omg.envs.battle.maps import map_names
from omg.utils.settings import UserError

# map: agents, enemies, actions, episode limit, observation, state
SIZES = {
    "3m": (3, 3, 9, 60, 30, 48),
    "8m": (8, 8, 14, 120, 80, 168),
    "25m": (25, 25, 31, 150, 250, 950),
    "5m_vs_6m": (5, 6, 12, 70, 55, 98),
    "8m_vs_9m": (8, 9, 15, 120, 85, 179),
    "10m_vs_11m": (10, 11, 17, 150, 105, 243),
    "27m_vs_30m": (27, 30, 36, 180, 285, 1170),
    "MMM": (10, 10, 16, 150, 160, 290),
    "MMM2": (10, 12, 18, 180, 176, 322),
    "2s3z": (5, 5, 11, 120, 80, 120),
    "3s5z": (8, 8, 14, 150, 128, 216),
    "3s5z_vs_3s6z": (8, 9, 15, 170, 136, 230),
    "3s_vs_3z": (3, 3, 9, 150, 36, 54),
    "3s_vs_4z": (3, 4, 10, 200, 42, 61),
    "3s_vs_5z": (3, 5, 11, 250, 48, 68),
    "1c3s5z": (9, 9, 15, 180, 162, 270),
    "2m_vs_1z": (2, 1, 7, 150, 16, 26),
    "corridor": (6, 24, 30, 400, 156, 282),
    "6h_vs_8z": (6, 8, 14, 150, 78, 140),
    "2s_vs_1sc": (2, 1, 7, 300, 17, 27),
    "so_many_baneling": (7, 32, 38, 100, 202, 397),
    "bane_vs_bane": (24, 24, 30, 200, 336, 984),
    "2c_vs_64zg": (2, 64, 70, 400, 332, 342),
}


def test_all_maps_of_smac_exist():
    assert sorted(map_names()) == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_a_map_has_the_sizes_of_smac(name):
    env = make("battle", map_name=name)
    spec = env.spec
    sizes = (spec.n_agents, len(env.map.enemies), spec.n_actions, spec.episode_limit, spec.obs_size, spec.state_size)
    assert sizes == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_units_start_on_the_ground_without_overlap(name):
    env = make("battle", map_name=name)
    places = np.concatenate([env.map.allies.start, env.map.enemies.start])
    x, y = jnp.asarray(places).T
    assert env.rules.walkable(x[:, None], y[:, None]).all()
    size = env.rules.radius + env.rules.radius.T
    distance = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1)) + np.eye(len(places)) * 99
    assert (distance >= size).all()


def write(path, content):
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


GOOD = {
    "allies": {"marine": 1},
    "enemies": {"ogre": 1},
    "episode_limit": 10,
    "start": [
        {"side": "ally", "at": [8, 8], "units": {"marine": 1}},
        {"side": "enemy", "at": [9, 9], "units": {"ogre": 1}},
    ],
}
OGRE = {"hp": 10, "size": 1, "speed": 1, "damage": 2}


def test_a_map_file_adds_maps_and_units(tmp_path):
    path = write(tmp_path / "m.yaml", {"maps": {"mine": GOOD}, "units": {"ogre": OGRE}})
    env = make("battle", map_name="mine", map_file=path)
    assert (env.spec.n_agents, env.spec.n_actions, env.spec.episode_limit) == (1, 7, 10)


def test_the_map_of_the_documentation(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "battle.md").read_text()
    path = write(tmp_path / "m.yaml", page.split("```yaml\n")[1].split("```")[0])
    env = make("battle", map_name="cave", map_file=path)
    assert env.spec.n_agents == 5
    assert len(env.rules.ground.paths.gates) == 4


BAD = {
    "no such map": ({}, "3s_vs_6z", "Did you mean"),
    "no such unit": ({"maps": {"mine": GOOD}}, "mine", "ogre"),
    "unit without hp": ({"maps": {"mine": GOOD}, "units": {"ogre": {"size": 1, "speed": 1}}}, "mine", "hp"),
    "unit with a typo": ({"maps": {"mine": GOOD}, "units": {"ogre": {**OGRE, "armour": 1}}}, "mine", "armor"),
    "too few": ({"maps": {"mine": {**GOOD, "allies": {"marine": 2}}}, "units": {"ogre": OGRE}}, "mine", "start groups"),
    "no limit": ({"maps": {"mine": {**GOOD, "episode_limit": 0}}, "units": {"ogre": OGRE}}, "mine", "1 or more"),
    "no enemies": ({"maps": {"mine": {k: GOOD[k] for k in ("allies", "start")}}}, "mine", "enemies"),
    "another key": ({"maps": {"mine": {**GOOD, "walls": []}}, "units": {"ogre": OGRE}}, "mine", "rooms"),
    "start in a wall": (
        {"maps": {"mine": {**GOOD, "rooms": [[20, 20, 30, 30]]}}, "units": {"ogre": OGRE}},
        "mine",
        "no ground",
    ),
    "other top": ({"map": {}}, "mine", "maps and units"),
    "not yaml": ("{", "mine", "not YAML"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_map_raises_a_user_error(case, tmp_path):
    content, name, message = BAD[case]
    with pytest.raises(UserError, match=message):
        make("battle", map_name=name, map_file=write(tmp_path / "m.yaml", content))


def test_a_missing_map_file_raises_a_user_error():
    with pytest.raises(UserError, match="cannot read"):
        make("battle", map_file="nowhere.yaml")

"""The zoo: what is packed is found and whole; what was altered is refused."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from omg.artifacts import open_pool
from omg.cli import main
from omg.controllers import BasicMAC
from omg.evaluation.scoreboard import TaskBounds
from omg.opponents import zoo
from omg.opponents.pool import Member, Pool
from omg.utils import checkpoints
from omg.utils.settings import UserError

ARCHITECTURE = {
    "policy_model": "rnn", "rnn_hidden_dim": 4, "rnn_cell": "gru", "layer_norm": True, "agent_output_type": "q",
    "test_greedy": True, "epsilon_finish": 0.05, "action_selector": "epsilon_greedy", "obs_last_action": True,
    "obs_agent_id": True, "obs_relative": False,
}  # fmt: skip
BOARD = {"grid_size": 5, "food": 1, "episode_limit": 12}


@pytest.fixture
def packed(tmp_path, foraging, monkeypatch):
    """A zoo with one task: a training member, an unseen one and a scripted policy."""
    pool = Pool(tmp_path / "pool", "foraging", BOARD, [], {"t_max": 10})
    mac = BasicMAC(foraging.spec, ARCHITECTURE)
    for seed, split in ((1, "train"), (2, "homologue")):
        network = jax.jit(mac.init_params)(jax.random.key(seed))["agent"]
        pool.add_network(network, ARCHITECTURE, algorithm="iql", split=split, seed=seed, steps=10, return_mean=0.5)
    pool.members.append(Member("slow", "slow", "non_homologue"))
    pool.save()
    (tmp_path / "bounds.json").write_text(json.dumps({"partners": ["slow"], "scripted": "slow", "returns": {}}))
    monkeypatch.setattr(zoo, "ROOT", tmp_path / "zoo")
    zoo.pack(tmp_path, "small")
    return pool


def config(pool="zoo:small"):
    return {"env": "foraging", "env_args": BOARD, "pool": pool}


def test_the_zoo_that_ships_is_whole():
    """Every file is the one that was packed; agents load; all of it stays small."""
    assert zoo.tasks()
    for task in zoo.tasks():
        pool = Pool.load(zoo.folder_of(f"zoo:{task}"))
        bounds = TaskBounds.read(pool.folder / "bounds.json")
        assert {*bounds.partners} <= {pool.members[i].name for i in pool.ids(("homologue", "non_homologue"))}
        networks = [member for member in pool.members if not member.is_scripted]
        assert all(checkpoints.checksum(pool.folder / member.file) == member.checksum for member in networks)
        for method in zoo.agents_of(task):
            assert checkpoints.find_model(zoo.agent_folder(f"zoo:{task}/{method}")).manifest["seeds"]
    assert sum(path.stat().st_size for path in zoo.ROOT.rglob("*") if path.is_file()) <= zoo.LIMIT


def test_a_pool_of_the_zoo_has_the_members_that_were_packed(packed, foraging):
    found = open_pool(config())
    assert [(m.name, m.split) for m in found.members] == [(m.name, m.split) for m in packed.members]
    for ours, theirs in zip(*(jax.tree.leaves(p.groups(foraging.spec, [0, 1])[0].policies) for p in (found, packed)),
                            strict=True):  # fmt: skip
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("file", ["pool.json", "bounds.json", "members/iql-2-10.safetensors"])
def test_a_file_of_the_zoo_whose_bytes_changed_is_refused(packed, foraging, file):
    path = zoo.ROOT / "small" / file
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="altered"):
        open_pool(config()).groups(foraging.spec, [0, 1])


def test_what_the_zoo_does_not_have_is_named(packed, capsys):
    with pytest.raises(UserError, match=r"Did you mean 'small'"):
        open_pool(config("zoo:smal"))
    assert main(["pool", "--env-config=foraging", "--pool=zoo:small"]) == 2
    assert "not changed" in capsys.readouterr().err
    (zoo.ROOT / "zoo.json").write_text(json.dumps({"version": 9, "tasks": {}}))
    with pytest.raises(UserError, match="version 9"):
        open_pool(config())


def test_no_training_member_is_an_unseen_one_under_another_name(packed):
    """Train and held-out sets are disjoint by checksum."""
    train, unseen, *_ = packed.members
    shutil.copy(packed.folder / train.file, packed.folder / unseen.file)
    packed.members[1] = dataclasses.replace(unseen, checksum=train.checksum)
    packed.save()
    with pytest.raises(UserError, match="iql-2-10 is unseen and a training member"):
        Pool.load(packed.folder)

"""Pools: files and manifest, members and splits, seats of a team, scripted policies, and what is refused."""

import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg import config as configuration
from omg.artifacts import open_pool
from omg.build import make_env
from omg.cli import main
from omg.commands.pool import Part
from omg.config import Command
from omg.controllers import BasicMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.evaluation.diversity import disagreement
from omg.opponents import REGISTRY, SPLITS
from omg.opponents.pool import Member, Pool
from omg.opponents.seating import SeatingSettings, seat
from omg.runners import PolicyGroup
from omg.utils import checkpoints
from omg.utils.jobs import Engine, run_jobs
from omg.utils.settings import UserError

ARCHITECTURE = {
    "policy_model": "rnn", "rnn_hidden_dim": 4, "rnn_cell": "gru", "layer_norm": True, "agent_output_type": "q",
    "test_greedy": True, "epsilon_finish": 0.05,
    "action_selector": "epsilon_greedy", "obs_last_action": True, "obs_agent_id": True, "obs_relative": False,
}  # fmt: skip


@pytest.fixture
def pool(tmp_path, foraging):
    """Two networks and two scripted policies."""
    pool = Pool(tmp_path / "pool", "foraging", {"grid_size": 5}, [], {"t_max": 10})
    mac = BasicMAC(foraging.spec, ARCHITECTURE)
    for seed, split in ((1, "train"), (2, "homologue")):
        about = {"algorithm": "iql", "split": split, "seed": seed, "steps": 10, "return_mean": 0.5}
        pool.add_network(jax.jit(mac.init_params)(jax.random.key(seed))["agent"], ARCHITECTURE, **about)
    pool.members += [Member("nearest_food", "nearest_food", "train"), Member("slow", "slow", "non_homologue")]
    pool.save()
    return pool


def test_a_loaded_pool_equals_the_saved_one(pool, foraging):
    again = Pool.load(pool.folder)
    assert again.members == pool.members
    assert (again.env, again.env_args, again.recipe) == ("foraging", {"grid_size": 5}, {"t_max": 10})
    networks, scripted = again.groups(foraging.spec, again.ids(["train", "homologue"]))
    assert (networks.ids, scripted.ids) == ((0, 1), (2,))
    for seed in (1, 2):
        own = networks.mac.init_params(jax.random.key(seed))
        kept = jax.tree.map(lambda x, i=seed - 1: x[i], networks.policies)
        # A pool keeps half precision.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), own, kept)
        assert all(x.dtype == np.float32 for x in jax.tree.leaves(kept))


def test_no_member_is_both_seen_and_unseen(pool):
    assert pool.ids(["train"]) == [0, 2]
    assert pool.ids(["homologue", "non_homologue"]) == [1, 3]
    assert pool.ids(["train"], "iql") == [0]
    assert pool.ids(["train"], "rules") == [2]
    with pytest.raises(AssertionError):
        Pool(pool.folder, "foraging", {}, [*pool.members, pool.members[0]]).save()
    for split in SPLITS.values():
        assert not set(split.train) & set(split.test)


def test_an_altered_or_missing_member_is_refused(pool, foraging):
    file = pool.folder / pool.members[0].file
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="altered"):
        pool.groups(foraging.spec, [0])
    file.unlink()
    with pytest.raises(UserError, match="has no file"):
        pool.groups(foraging.spec, [0])
    (pool.folder / "pool.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        Pool.load(pool.folder)
    with pytest.raises(UserError, match="there is no pool"):
        Pool.load(pool.folder / "nowhere")


def test_a_pool_of_another_environment_is_refused(pool):
    pool.check_env("foraging", {"grid_size": 5})
    with pytest.raises(UserError, match=r"grid_size=5, this run has 8"):
        pool.check_env("foraging", {"grid_size": 8})
    with pytest.raises(UserError, match="was made for foraging, this run is on matrix_game"):
        pool.check_env("matrix_game", {})


def test_seats_follow_the_order_of_the_teams_name(pool):
    """Offsets count the places after the focal agent, around the table."""
    spec = make("foraging", grid_size=5, food=1, players=3, episode_limit=12).spec
    stand_in = [PolicyGroup(None, None, (0,))]
    team = SeatingSettings(multi_algs=True, team="2any1iql_omg")
    seating = seat(team, "iql_omg", spec, ["iql", "iql_omg"], open_pool, stand_in)
    assert seating.offsets == (0,)
    assert [o.offsets for o in seating.opponents] == [(1, 2)]
    middle = SeatingSettings(multi_algs=True, team="1any1iql_omg1any", train_alg="iql_omg")
    seating = seat(middle, "iql_omg", spec, ["iql_omg"], open_pool, stand_in)
    assert [o.offsets for o in seating.opponents] == [(2,), (1,)]
    alone = SeatingSettings()
    assert [o.offsets for o in seat(alone, "iql", spec, ["iql"], open_pool, stand_in).opponents] == [(1, 2)]


def test_a_team_member_that_the_pool_lacks_is_named(pool):
    spec = make("foraging", grid_size=5, food=1, episode_limit=12).spec
    team = SeatingSettings(multi_algs=True, team="1vdn1iql_omg")
    with pytest.raises(UserError, match="has no vdn to train with: it has iql, nearest_food"):
        seat(team, "iql_omg", spec, ["vdn", "iql_omg"], lambda: Pool.load(pool.folder))
    config = {"pool": None, "local_results_path": "nowhere", "env": "foraging", "env_args": {"grid_size": 5}}
    with pytest.raises(UserError, match=r"--pool=nowhere/\S+ --env-config=foraging with .*env_args\.grid_size=5"):
        open_pool(config)


def test_disagreement_is_0_between_equal_policies_and_1_between_opposite_ones(foraging):
    policies = [lambda obs, avail, seat, key, a=a: jnp.int32(a) for a in (0, 0, 1)]
    group = PolicyGroup(ScriptedMAC(foraging.spec, *policies), jnp.arange(3), (0, 1, 2))
    pairs = disagreement(foraging, [group], envs=2)
    np.testing.assert_array_equal(pairs, [[0, 0, 1], [0, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_scripted_policies_choose_available_actions_only(name):
    env = make_env(configuration.load(Command(env_config={"matrix_game": "prisoners_dilemma"}.get(name, name))))
    _, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 16))
    policies = [make_policy(env.spec) for make_policy in REGISTRY[name].values()]
    mac = ScriptedMAC(env.spec, *policies)

    @jax.jit
    def act(number, key):
        return mac.select_actions(number, seen, mac.init_memory(None, 16), jnp.int32(0), key, True)[0]

    for number in range(len(policies)):
        actions = np.asarray(act(jnp.int32(number), jax.random.key(number)))
        assert np.take_along_axis(np.asarray(seen.avail_actions), actions[..., None], -1).all()


def test_the_manifest_describes_every_opponent(pool):
    entry = json.loads((pool.folder / "pool.json").read_text())["members"][0]
    assert entry["algorithm"] == "iql"
    assert {"seed", "steps", "return_mean", "architecture", "checksum", "split"} <= set(entry)


@pytest.mark.slow
def test_algorithms_that_are_trained_at_once_give_the_same_pool(tmp_path, monkeypatch):
    """Each in a process of its own (here: one after the other), then put together."""
    words = ["pool", "--env-config=two_step", "--pool_algs=[iql]", "--pool_test_algs=[pqn]", "--pool_stages=[1.0]"]
    words += ["--t_max=32", "--test_nepisode=8", "--rnn_hidden_dim=8", "--buffer_size=32", "--pool_test_seeds=1"]
    assert main([*words, f"--pool={tmp_path / 'one'}"]) == 0
    began, lock = [], threading.Lock()

    def in_process(job, folder, running, at_once):
        with lock:
            began.append(job.title)
            return main(job.words())

    monkeypatch.setattr("omg.utils.jobs._in_process", in_process)
    assert main([*words, f"--pool={tmp_path / 'two'}", "--jobs=2"]) == 0
    one, two = Pool.load(tmp_path / "one"), Pool.load(tmp_path / "two")
    assert sorted(began) == ["iql", "pqn"]
    assert {m.split for m in one.members} == {"train", "homologue", "non_homologue"}
    assert two.members == one.members
    assert two.recipe == one.recipe
    assert two.groups(make("two_step").spec, range(len(two.members)))
    assert not (tmp_path / "two/parts").exists()


def test_a_pool_among_stages_that_run_at_once_trains_its_algorithms_at_once(tmp_path, monkeypatch):
    started = []

    def refuse(command, **_):
        started.append(command[3:])
        raise KeyboardInterrupt

    monkeypatch.setattr("omg.utils.jobs.subprocess.Popen", refuse)
    for verb in ("pool", "train"):
        job = Part("ppo", Command(verb))
        with pytest.raises(KeyboardInterrupt):
            run_jobs([job], Engine(3), tmp_path, {}, lambda job: 0)
    assert started == [["pool", "--jobs=3"], ["train"]]


@pytest.mark.parametrize("seeds", [[7], [7, 8]])
def test_a_runs_folder_is_a_pool_of_its_seeds(tmp_path, foraging, seeds):
    mac = BasicMAC(foraging.spec, ARCHITECTURE)
    networks = [mac.init_params(jax.random.key(seed))["agent"] for seed in seeds]
    kept = networks[0] if len(seeds) == 1 else jax.tree.map(lambda *x: jnp.stack(x), *networks)
    about = {"env": "foraging", "env_args": {"grid_size": 5}}
    config = {**ARCHITECTURE, **about, "name": "vdn", "mac": "basic_mac", "am_model": "none_am"}
    checkpoints.save(tmp_path / "checkpoints", 50, {"agent": kept}, {"config": config, "seeds": seeds}, 1)

    pool = open_pool({**about, "pool": str(tmp_path)})
    assert [member.name for member in pool.members] == [f"vdn-{seed}" for seed in seeds]
    assert pool.ids(["homologue"]) == pool.ids(["train"], "vdn") == list(range(len(seeds)))
    assert pool.ids(["train"], "iql") == []
    (group,) = pool.groups(foraging.spec, pool.ids(["train"]))
    for i, network in enumerate(networks):
        for a, b in zip(jax.tree.leaves(group.policies), jax.tree.leaves(network), strict=True):
            np.testing.assert_array_equal(a[i], b)
    with pytest.raises(UserError, match="grid_size"):
        open_pool({**about, "env_args": {"grid_size": 6}, "pool": str(tmp_path)})


@pytest.mark.slow
def test_an_opponent_may_have_an_agent_model(tmp_path, foraging):
    """A LIAM agent as an opponent acts as it does by itself."""
    about = {"env": "foraging", "env_args": {"grid_size": 5}}
    config = {**ARCHITECTURE, **about, "name": "iql_liam", "mac": "multi_module_mac", "am_model": "liam_am"}
    mac = BasicMAC(foraging.spec, config)
    params = jax.jit(mac.init_params)(jax.random.key(3))
    checkpoints.save(tmp_path / "checkpoints", 50, params, {"config": config, "seeds": [3]}, 1)
    pool = open_pool({**about, "pool": str(tmp_path)})
    (group,) = pool.groups(foraging.spec, [0])
    frozen = jax.tree.map(lambda x: x[0], group.policies)
    assert frozen.keys() == params.keys() > {"agent"}
    _, seen = jax.vmap(foraging.reset)(jax.random.split(jax.random.key(0), 4))

    def outputs(mac, params):
        memory, found = mac.init_memory(params, 4), []
        for step in range(3):
            actions, memory = mac.select_actions(params, seen, memory, jnp.int32(0), jax.random.key(step), True)
            found.append(actions)
        return jnp.stack(found), memory

    for ours, theirs in zip(*(jax.tree.leaves(jax.jit(outputs, static_argnums=0)(m, p))
                              for m, p in ((group.mac, frozen), (mac, params))), strict=True):  # fmt: skip
        np.testing.assert_array_equal(ours, theirs)


def test_an_oracle_is_no_opponent(tmp_path, foraging):
    about = {"env": "foraging", "env_args": {}}
    config = {**ARCHITECTURE, **about, "name": "ppo_oracle", "mac": "multi_module_mac", "am_model": "oracle_am"}
    checkpoints.save(tmp_path / "checkpoints", 50, {"agent": {"x": jnp.zeros(1)}}, {"config": config, "seeds": [3]}, 1)
    with pytest.raises(UserError, match="identity"):
        open_pool({**about, "pool": str(tmp_path)})

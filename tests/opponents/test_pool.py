"""Pools: what is kept, who is in it, and what happens when it is damaged."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers import BasicMAC, RuleMAC
from omg.envs import make
from omg.opponents import REGISTRY, SPLITS
from omg.opponents.pool import Kind, Member, Pool
from omg.opponents.seating import open_pool, seat
from omg.pooling import disagreement
from omg.utils import checkpoints
from omg.utils.settings import UserError

ARCHITECTURE = {
    "policy_model": "rnn", "rnn_hidden_dim": 4, "rnn_cell": "gru", "agent_output_type": "q",
    "action_selector": "epsilon_greedy", "obs_last_action": True, "obs_agent_id": True,
}  # fmt: skip


@pytest.fixture
def pool(tmp_path, foraging):
    """Two networks and two rules."""
    pool = Pool(tmp_path / "pool", "foraging", {"grid_size": 5}, [], {"t_max": 10})
    mac = BasicMAC(foraging.spec, ARCHITECTURE)
    for seed, split in ((1, "train"), (2, "homologue")):
        about = {"algorithm": "iql", "split": split, "seed": seed, "steps": 10, "return_mean": 0.5}
        pool.add_network(mac.init_agent(jax.random.key(seed)), ARCHITECTURE, **about)
    pool.members += [Member("nearest_food", "nearest_food", "train"), Member("slow", "slow", "non_homologue")]
    pool.save()
    return pool


def test_a_pool_comes_back_as_it_was_kept(pool, foraging):
    again = Pool.load(pool.folder)
    assert again.members == pool.members
    assert (again.world, again.env_args, again.recipe) == ("foraging", {"grid_size": 5}, {"t_max": 10})
    learned, rules = again.kinds(foraging.spec, again.ids(["train", "homologue"]))
    assert (learned.ids, rules.ids) == ((0, 1), (2,))
    for seed in (1, 2):
        own = learned.mac.init_agent(jax.random.key(seed))
        kept = jax.tree.map(lambda x, i=seed - 1: x[i], learned.policies)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), own, kept)))


def test_who_trains_is_never_who_tests(pool):
    assert pool.ids(["train"]) == [0, 2]
    assert pool.ids(["homologue", "non_homologue"]) == [1, 3]
    assert pool.ids(["train"], "iql") == [0]
    assert pool.ids(["train"], "rules") == [2]
    with pytest.raises(AssertionError):
        Pool(pool.folder, "foraging", {}, [*pool.members, pool.members[0]]).save()
    for split in SPLITS.values():
        assert not set(split.train) & set(split.test)


def test_an_altered_or_lost_member_is_refused(pool, foraging):
    file = pool.folder / pool.members[0].file
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="altered"):
        pool.kinds(foraging.spec, [0])
    file.unlink()
    with pytest.raises(UserError, match="has lost"):
        pool.kinds(foraging.spec, [0])
    (pool.folder / "pool.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        Pool.load(pool.folder)
    with pytest.raises(UserError, match="there is no pool"):
        Pool.load(pool.folder / "nowhere")


def test_a_pool_of_another_world_is_refused(pool):
    pool.check_world({"env": "foraging", "env_args": {"grid_size": 5}})
    with pytest.raises(UserError, match=r"grid_size=5, this run has 8"):
        pool.check_world({"env": "foraging", "env_args": {"grid_size": 8}})
    with pytest.raises(UserError, match="is of foraging, this run is of matrix_game"):
        pool.check_world({"env": "matrix_game", "env_args": {}})


def test_seats_follow_the_teams_name(pool):
    """`1iql1nobody1iql_omg` in a world of three: who sits how many places after the focal agent."""
    spec = make("foraging", grid_size=5, food=1, players=3, episode_limit=12).spec
    config = {"name": "2any1iql_omg", "multi_algs": True, "pool": str(pool.folder), "env_args": {"grid_size": 5}}
    config |= {"env": "foraging", "local_results_path": "results"}
    seating = seat(config, spec, ["iql", "iql_omg"], [Kind(None, None, (0,))])
    assert seating.offsets == (0,)
    assert [o.offsets for o in seating.opponents] == [(1, 2)]
    middle = seat(
        config | {"name": "1any1iql_omg1any", "train_alg": "iql_omg"}, spec, ["iql_omg"], [Kind(None, None, (0,))]
    )
    assert [o.offsets for o in middle.opponents] == [(2,), (1,)]
    two = make("foraging", grid_size=5, food=1, episode_limit=12).spec
    with pytest.raises(UserError, match="has no vdn to train with: it has iql, nearest_food"):
        seat(config | {"name": "1vdn1iql_omg"}, two, ["vdn", "iql_omg"])
    with pytest.raises(UserError, match=r"foraging --env-config=foraging with env_args\.grid_size=5$"):
        seat(config | {"pool": None, "local_results_path": "nowhere"}, spec, ["iql_omg"])


def test_disagreement_is_none_with_oneself_and_all_with_ones_opposite(foraging):
    rules = [lambda obs, avail, seat, key, a=a: jnp.int32(a) for a in (0, 0, 1)]
    pairs = disagreement(foraging, [Kind(RuleMAC(foraging.spec, *rules), jnp.arange(3), (0, 1, 2))], worlds=2)
    np.testing.assert_array_equal(pairs, [[0, 0, 1], [0, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize("world", sorted(REGISTRY))
def test_every_rule_only_takes_what_is_available(world):
    env = make(world)
    _, seen = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 16))
    rules = [make_rule(env.spec) for make_rule in REGISTRY[world].values()]
    mac = RuleMAC(env.spec, *rules)

    @jax.jit
    def act(number, key):
        return mac.select_actions(number, seen, mac.init_memory(None, 16), jnp.int32(0), key, True)[0]

    for number in range(len(rules)):
        actions = np.asarray(act(jnp.int32(number), jax.random.key(number)))
        assert np.take_along_axis(np.asarray(seen.avail_actions), actions[..., None], -1).all()


def test_the_manifest_says_what_an_opponent_is(pool):
    entry = json.loads((pool.folder / "pool.json").read_text())["members"][0]
    assert entry["algorithm"] == "iql"
    assert {"seed", "steps", "return_mean", "architecture", "checksum", "split"} <= set(entry)


@pytest.mark.parametrize("seeds", [[7], [7, 8]])
def test_a_run_is_a_pool_of_its_seeds(tmp_path, foraging, seeds):
    mac = BasicMAC(foraging.spec, ARCHITECTURE)
    networks = [mac.init_agent(jax.random.key(seed)) for seed in seeds]
    kept = networks[0] if len(seeds) == 1 else jax.tree.map(lambda *x: jnp.stack(x), *networks)
    about = {"env": "foraging", "env_args": {"grid_size": 5}}
    config = {**ARCHITECTURE, **about, "name": "vdn", "mac": "basic_mac", "am_model": "none_am"}
    checkpoints.save(tmp_path / "checkpoints", 50, {"agent": kept}, {"config": config, "seeds": seeds}, 1)

    pool = open_pool({**about, "pool": str(tmp_path)})
    assert [member.name for member in pool.members] == [f"vdn-{seed}" for seed in seeds]
    assert pool.ids(["homologue"]) == pool.ids(["train"], "vdn") == list(range(len(seeds)))
    assert pool.ids(["train"], "iql") == []
    (kind,) = pool.kinds(foraging.spec, pool.ids(["train"]))
    for i, network in enumerate(networks):
        for a, b in zip(jax.tree.leaves(kind.policies), jax.tree.leaves(network), strict=True):
            np.testing.assert_array_equal(a[i], b)
    with pytest.raises(UserError, match="grid_size"):
        open_pool({**about, "env_args": {"grid_size": 6}, "pool": str(tmp_path)})

"""PettingZoo in both directions: its API test on our environments, and its environments in our runners."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

from omg.cli import main
from omg.components.episode_buffer import make_scheme
from omg.controllers import BasicMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make, to_pettingzoo, trust
from omg.envs.pettingzoo_adapter import PettingZooGame, open_pettingzoo
from omg.learners import goal_learning
from omg.modules.entities import Entities
from omg.modules.slot_goals import learn_types
from omg.opponents import REGISTRY as SCRIPTED
from omg.runners import REGISTRY, PolicyGroup
from omg.runners.workers import Recipe
from omg.utils.settings import UserError

OURS = {
    "foraging": {"grid_size": 6, "food": 2},
    "predator_prey": {},
    "matrix_game": {"payoff": [[1, 0], [0, 2]], "rounds": 3},
    "jaxmarl": {"name": "MPE_simple_speaker_listener_v4"},
    "battle": {"map_name": "3m"},
    "stag_hunt": {},
    "snowdrift": {},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(OURS))
def test_our_environments_pass_the_api_test_of_pettingzoo(name, capsys):
    parallel_api_test(to_pettingzoo(name, **OURS[name]), num_cycles=60)
    assert "Passed" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_episode():
    games = [to_pettingzoo("stag_hunt", 7), to_pettingzoo("stag_hunt", 8)]
    first = [game.reset(seed=3)[0] for game in games]
    np.testing.assert_array_equal(first[0]["agent_0"], first[1]["agent_0"])
    again, _ = games[0].reset()
    assert (again["agent_0"] != first[0]["agent_0"]).any(), "the next episode is different"


def test_agents_that_left_do_not_act_any_more():
    game = to_pettingzoo("stag_hunt", grid_size=3, hunters=2, hares=2, stags=0)
    acting = []
    for seed in range(3):
        game.reset(seed=seed)
        for i, agent in enumerate(game.agents):
            game.action_space(agent).seed(10 * seed + i)
        while game.agents:
            acting.append(list(game.agents))
            _, rewards, terminated, _, infos = game.step(
                {a: game.action_space(a).sample(infos_mask(game, a)) for a in game.agents}
            )
            assert all(not terminated[a] or rewards[a] in (0, 1) for a in terminated)
            assert set(infos) == set(acting[-1])
    assert any(len(names) == 1 for names in acting)


def infos_mask(game, agent):
    return game._infos([agent])[agent]["action_mask"]


@pytest.mark.filterwarnings("ignore")
def test_supersuit_vectorises_our_environments():
    import supersuit

    vector = supersuit.pettingzoo_env_to_vec_env_v1(to_pettingzoo("snowdrift", players=2, drifts=2))
    vector = supersuit.concat_vec_envs_v1(vector, 3, base_class="gymnasium")
    obs, _ = vector.reset(seed=1)
    assert obs.shape == (6, vector.observation_space.shape[-1])
    for _ in range(5):
        obs, reward, *_ = vector.step(np.zeros(6, int))
    assert reward.shape == (6,)
    vector.close()


@pytest.mark.filterwarnings("ignore")
def test_supersuit_continues_episodes_after_an_agent_left():
    import supersuit

    game = supersuit.black_death_v3(to_pettingzoo("stag_hunt", grid_size=3, hunters=2, hares=2, stags=0))
    vector = supersuit.concat_vec_envs_v1(supersuit.pettingzoo_env_to_vec_env_v1(game), 2, base_class="gymnasium")
    vector.reset(seed=1)
    rewards = sum(vector.step(np.random.default_rng(i).integers(5, size=4))[1] for i in range(40))
    assert rewards.sum() > 2, "episodes continue after a hunter left, and new ones start"
    vector.close()


BOARD = {"grid_size": 4, "hunters": 2, "hares": 2, "stags": 1, "episode_limit": 12}
LAYOUT = {"hunters": [2, 3], "hares": [2, 3], "stags": [1, 3], "time": [1]}
HUNT = {"name": "tests.envs.stag_hunt_zoo", **BOARD, "obs_layout": LAYOUT, "agents_in_obs": "hunters"}


def test_goals_are_learned_through_pettingzoo_where_a_layout_is_given(monkeypatch):
    monkeypatch.setattr(trust, "_allowed", {HUNT["name"]})
    ours = make("stag_hunt", **BOARD)
    args = HUNT | {"cell_size": ours.spec.obs_storage.scale}
    zoo = make("pettingzoo", **args)
    np.testing.assert_allclose(Entities(zoo.spec).cell, Entities(ours.spec).cell)
    policies = [SCRIPTED["stag_hunt"][name](ours.spec) for name in ("always_stag", "always_hare")]
    group = PolicyGroup(ScriptedMAC(zoo.spec, *policies), jnp.arange(2), (0, 1))
    recipe = Recipe("pettingzoo", args, 1, (), trust.allowed())
    host = REGISTRY["episode"](zoo, group.mac, *make_scheme(zoo.spec), 1, recipe, 60.0)
    played = goal_learning.play(zoo, [group], 6, 0, host)
    host.close()
    learned, found = learn_types(zoo.spec, *played[:3])
    hare, other_hare, stag = learned.types.tolist()
    assert hare == other_hare != stag, "what it pays to reach them makes them different types"
    assert found["events"] > 12


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"obs_layout": {"hunters": [2, 3]}}, "describes 6 numbers, and an observation has 16"),
        ({"obs_layout": {"hunters": 16}}, "obs_layout.hunters is a shape"),
        ({"obs_layout": [16]}, "gives the shape of every component"),
        ({"agents_in_obs": "hunter"}, "agents_in_obs is 'hunter'; obs_layout has hunters, hares"),
    ],
)
def test_a_mistake_in_a_layout_raises_a_user_error(monkeypatch, change, hint):
    monkeypatch.setattr(trust, "_allowed", {HUNT["name"]})
    with pytest.raises(UserError, match=hint):
        make("pettingzoo", **(HUNT | change))


class Duel(ParallelEnv):
    """Two agents with different spaces; the first terminates after two steps, the second continues to `max_cycles`."""

    metadata = {"name": "duel"}  # noqa: RUF012

    def __init__(self, max_cycles=4):
        import gymnasium

        self.possible_agents, self.max_cycles = ["big", "small"], max_cycles
        self.spaces = {
            "big": (gymnasium.spaces.Box(-1, 1, (2, 2)), gymnasium.spaces.Discrete(4)),
            "small": (gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)),
        }

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def _obs(self):
        return {a: np.full(self.spaces[a][0].shape, 0.5, np.float32) for a in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self._obs(), {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), "only living agents act"
        assert actions.get("small", 0) < 2
        self.t += 1
        acted, obs = list(self.agents), self._obs()
        terminated = {a: a == "big" and self.t >= 2 for a in acted}
        truncated = dict.fromkeys(acted, self.t >= self.max_cycles)
        self.agents = [a for a in acted if not terminated[a] and not truncated[a]]
        return obs, dict.fromkeys(acted, 1.0), terminated, truncated, {a: {} for a in acted}


def test_spaces_are_padded_and_dead_agents_masked():
    game = PettingZooGame(Duel(), 4)
    game.reset()
    assert [row.tolist() for row in game.get_obs()] == [[0.5] * 4, [0.5] * 3 + [0]]
    assert game.get_avail_actions().tolist() == [[True] * 4, [True, True, False, False]]
    game.step([3, 1])
    _, ended, info = game.step([3, 1])
    assert not ended
    assert game.get_alive().tolist() == [False, True]
    assert game.get_avail_actions()[0].tolist() == [True, False, False, False]
    assert info["agent_rewards"].tolist() == [1, 1]
    game.step([0, 1])
    _, ended, info = game.step([0, 1])
    assert ended
    assert info["episode_limit"]
    assert info["agent_rewards"].tolist() == [0, 1]


def test_an_agent_that_terminates_while_the_other_is_truncated_is_dead():
    game = PettingZooGame(Duel(max_cycles=2), 4)
    game.reset()
    game.step([3, 1])
    _, ended, info = game.step([3, 1])
    assert ended
    assert info["episode_limit"]
    assert game.get_alive().tolist() == [False, True], "the first agent terminated, the second was truncated"


class Masked(Duel):
    """Observations as in the games of PettingZoo's classic family: with the mask of the available actions."""

    def observation_space(self, agent):
        import gymnasium

        mask = gymnasium.spaces.Box(0, 1, (self.spaces[agent][1].n,), np.int8)
        return gymnasium.spaces.Dict({"observation": self.spaces[agent][0], "action_mask": mask})

    def _obs(self):
        masks = {"big": [0, 1, 0, 1], "small": [0, 1]}
        return {a: {"observation": x, "action_mask": np.array(masks[a])} for a, x in super()._obs().items()}


def test_masks_in_observations_are_masks_and_no_input():
    game = PettingZooGame(Masked(), 4)
    game.reset()
    assert [row.tolist() for row in game.get_obs()] == [[0.5] * 4, [0.5] * 3 + [0]]
    assert game.get_avail_actions().tolist() == [[False, True, False, True], [False, True, False, False]]


@pytest.mark.parametrize("runner", ["episode", "parallel"])
def test_runners_record_the_episodes_of_pettingzoo(runner):
    settings = {"name": "mpe2.simple_tag_v3", "max_cycles": 6}
    env = make("pettingzoo", **settings)
    assert env.spec.n_agents == 4
    assert env.spec.episode_limit == 6
    mac = BasicMAC(env.spec, {"rnn_hidden_dim": 4})
    scheme, groups = make_scheme(env.spec)
    play = REGISTRY[runner](env, mac, scheme, groups, 1, Recipe("pettingzoo", settings, 1), 60.0)
    batch, stats = play.run(mac.init_params(jax.random.key(0)), jnp.int32(0), jax.random.key(2), False)
    play.close()
    assert stats.lengths.tolist() == [6]
    assert batch["filled"][0].tolist() == [True] * 6 + [False]
    assert not batch["terminated"].any(), "the time limit is a truncation"
    game = open_pettingzoo(settings, 1)
    game.reset(jax.random.split(jax.random.fold_in(jax.random.key(2), 6), 1)[0])
    np.testing.assert_allclose(batch.obs[0, 0], game.get_obs(), atol=1e-6)
    for t in range(6):
        _, _, info = game.step(batch.actions[0, t].tolist())
        np.testing.assert_allclose(batch.reward[0, t], info["agent_rewards"], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({}, "env_args.name=mpe2"),
        ({"name": "mpe2.no_such_v0"}, "parallel_env"),
        ({"name": ""}, "parallel_env"),
        ({"name": ".simple"}, "parallel_env"),
        ({"name": "mpe2.simple_tag_v3", "colour": 1}, "does not accept"),
        ({"name": "mpe2.simple_tag_v3", "continuous_actions": True}, "discrete"),
        ({"name": "mpe2.simple_tag_v3", "game_type": "friendly"}, "cooperative"),
    ],
)
def test_unsupported_settings_raise_a_user_error(settings, hint):
    with pytest.raises(UserError, match=hint):
        open_pettingzoo(settings, 0)


@pytest.mark.slow
def test_training_on_an_environment_of_pettingzoo(tmp_path, capsys):
    words = [
        "--config=iql",
        "--env-config=pettingzoo",
        "--t_max=40",
        "--test_nepisode=1",
        f"--run_dir={tmp_path / 'run'}",
    ]
    small = ["--batch_size=2", "--buffer_size=4", "--rnn_hidden_dim=4", "with", "env_args.max_cycles=5"]
    assert main(["train", *words, *small]) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    # The team is a pool of partners: OMG's VAE sees their states, and an agent learns beside them.
    common = ["--config=iql_omg", "--env-config=pettingzoo", f"--pool={tmp_path / 'run'}", "--vae_latent_dim=2"]
    common += ["--vae_hidden_dim=4", f"--local_results_path={tmp_path}", "--partners=all"]
    vae = ["--vae_episodes=2", "--vae_updates=2", "with", "env_args.max_cycles=5"]
    assert main(["pretrain", *common, f"--run_dir={tmp_path / 'vae'}", *vae]) == 0
    train = ["--t_max=10", "--test_nepisode=1", f"--vae_path={tmp_path / 'vae'}", f"--run_dir={tmp_path / 'omg'}"]
    train += ["--cond_rnn_dim=4", "--cond_fc_dim=4", "--batch_size=1", "--buffer_size=4", "--rnn_hidden_dim=4"]
    assert main(["train", *common, *train, "with", "env_args.max_cycles=5"]) == 0
    summary = json.loads((tmp_path / "omg" / "summary.json").read_text())
    assert summary["dropped_episodes"] == 0
    assert "test_focal_return_mean" in summary
    assert main(["evaluate", f"--checkpoint_path={tmp_path / 'omg'}", "--test_nepisode=1"]) == 0
    pool = [f"--checkpoint_path={tmp_path / 'omg'}", f"--pool={tmp_path / 'run'}", f"--run_dir={tmp_path / 'e'}"]
    assert main(["evaluate", *pool, "--test_nepisode=3"]) == 0
    tested = json.loads((tmp_path / "e" / "summary.json").read_text())
    assert tested["episodes_per_opponent"] == 4, "rounded up to one in every seat"
    assert all(np.isfinite(numbers["return"]["mean"]) for numbers in tested["opponents"].values())
    capsys.readouterr()
    assert main(["pool", "--env-config=pettingzoo"]) == 2
    assert "runs in Python" in capsys.readouterr().err

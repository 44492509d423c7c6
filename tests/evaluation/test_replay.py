"""Replays: what stands beside the board is what the focal agent inferred, and the lines around it are true."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from omg.controllers import BasicMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.envs.grid import COLOURS
from omg.envs.matrix_game import CHOSEN
from omg.evaluation import recording, replay
from omg.evaluation.episode import Rows
from omg.opponents import REGISTRY
from omg.runners import PolicyGroup

MODEL = {
    "policy_model": "rnn", "rnn_hidden_dim": 4, "rnn_cell": "gru", "layer_norm": True, "agent_output_type": "q",
    "test_greedy": True, "epsilon_finish": 0.05, "action_selector": "epsilon_greedy", "obs_last_action": True,
    "obs_agent_id": True, "am_model": "base_am", "am_hidden_dim": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def played(foraging):
    """An untrained agent that predicts actions, with a scripted partner; its episode, and the batch it comes from."""
    focal = BasicMAC(foraging.spec, MODEL)
    agent = jax.jit(focal.init_params)(jax.random.key(0))
    group = PolicyGroup(
        ScriptedMAC(foraging.spec, REGISTRY["foraging"]["nearest_food"](foraging.spec)), jnp.arange(1), (0,)
    )
    batches = []
    remember, recording.play_episodes = recording.play_episodes, lambda *a: batches.append(play(*a)) or batches[0]
    play = remember
    try:
        episode = recording.record_focal(foraging, focal, agent, group, jax.random.key(1), names=("me", "other"))
    finally:
        recording.play_episodes = remember
    return episode, batches[0][1], focal, agent


def test_predictions_stand_beside_the_actions_that_were_taken(played):
    episode, batch, *_ = played
    predicted = episode.shown[0]
    assert predicted.title == "predicted next action"
    assert predicted.names == ["stay", "up", "down", "left", "right", "load"]
    assert predicted.seats == [1]
    assert predicted.values.shape == (episode.steps, 1, 6)
    np.testing.assert_allclose(predicted.values.sum(-1), 1, atol=1e-5)
    assert predicted.alive.all()
    np.testing.assert_array_equal(predicted.taken[:, 0], np.asarray(batch.actions[0, : episode.steps, 1]))


def test_the_agents_own_values_are_those_that_it_acted_by(played):
    """Greedy in tests: the action that was taken has the highest value of those that were available."""
    episode, batch, *_ = played
    own = episode.shown[1]
    assert (own.title, own.own, own.probabilities) == ("own action values", True, False)
    np.testing.assert_array_equal(np.nanargmax(own.values[:, 0], -1), episode.actions[:, 0])
    unavailable = np.asarray(batch.avail_actions[0, : episode.steps, 0]) == 0
    assert np.isnan(own.values[:, 0][unavailable]).all()
    assert np.isfinite(own.values[:, 0][~unavailable]).all()


def test_an_episode_counts_steps_and_rewards(played, monkeypatch):
    episode, batch, *_ = played
    said = []
    monkeypatch.setattr(replay, "side_by_side", lambda episode, panels, title, legend: said.append((title, legend)))
    replay.frames_of(episode)
    reward, steps = np.asarray(batch.reward[0]), episode.steps
    assert said[0] == (f"step 0 of {steps}    return so far: 0.00 (of the focal agent: 0.00)", ["me", "other"])
    own, team = reward[:, 0].sum(), reward.sum()
    assert team > 0, "the partner finds food"
    assert said[-1][0] == f"step {steps} of {steps}    return so far: {team:.2f} (of the focal agent: {own:.2f})"


def test_a_recorded_episode_is_read_back_with_every_scene_and_number(played, tmp_path):
    episode, *_ = played
    read = json.loads(episode.save(tmp_path).read_text())
    assert len(read["frames"]) == episode.steps + 1
    assert [read["board"] + frame for frame in read["frames"]] == [scene.shapes for scene in episode.scenes]
    assert len(read["board"]) >= 12, "the lines of the board are written once"
    assert all(shape[0] == "line" for shape in read["board"][:12])
    shown = read["shown"][0]
    assert shown["taken"] == episode.shown[0].taken.tolist()
    np.testing.assert_allclose(np.array(shown["values"]), episode.shown[0].values, atol=1e-5)
    own = np.array(read["shown"][1]["values"], float)
    np.testing.assert_allclose(own, episode.shown[1].values, atol=1e-5)
    assert read["own_return"][-1] == pytest.approx(episode.rewards[:, 0].sum(), abs=1e-4)


def rows_of(values, alive, names, seats):
    return Rows("", seats, names, np.asarray(values)[None], np.asarray(alive)[None])


def test_bars_are_as_high_as_their_probabilities_and_in_the_agents_colour(played):
    episode = played[0]
    rows = rows_of([[0.25, 0.75]], [True], ["a", "b"], [1])
    panel = np.asarray(replay.bars(episode, rows, 0, (230, 124)))
    filled = (panel == COLOURS[1]).all(-1)
    low, high = filled[:, 60].sum(), filled[:, 160].sum()
    assert low == pytest.approx(25, abs=2)
    assert high == pytest.approx(75, abs=2)
    dead = np.asarray(replay.bars(episode, rows._replace(alive=np.array([[False]])), 0, (230, 124)))
    assert not (dead == COLOURS[1]).all(-1)[:, 60].any()


@pytest.mark.parametrize(("agents", "actions"), [(1, 70), (26, 36)])
def test_bars_of_many_agents_and_actions_fit_into_a_battle(played, agents, actions):
    episode = dataclasses.replace(played[0], colours=[COLOURS[0]] * agents)
    names = [str(i) for i in range(actions)]
    rows = rows_of(np.full((agents, actions), 1 / actions), np.ones(agents, bool), names, list(range(agents)))
    panel = replay.bars(episode, rows._replace(taken=np.zeros((1, agents), int)), 0, (416, 416))
    assert panel.size == (416, 416)


def test_a_focal_replay_names_the_seats(played, tmp_path):
    episode = played[0]
    with Image.open(replay.save_replay(episode, tmp_path / "r.gif")) as gif:
        board = episode.scenes[0]
        assert gif.size == (2 * board.width + 6, board.height + 4 * replay.CAPTION), (
            "title, captions, two lines of legend"
        )
    assert (tmp_path / "episode.json").exists()


def test_an_environment_that_only_renders_is_recorded_as_pictures(foraging, tmp_path):
    class Rendered(type(foraging)):
        def draw(self, state):
            return None

        def render(self, state):
            return super().draw(state).paint()

    env = Rendered(foraging.settings)
    state, _ = env.reset(jax.random.key(0))
    scene = recording.scene_of(env, jax.device_get(state))
    assert scene.shapes[0][0] == "picture"
    np.testing.assert_array_equal(np.asarray(scene.paint()), np.asarray(foraging.draw(jax.device_get(state)).paint()))


def test_a_scene_shows_how_far_every_agent_sees():
    env = make("foraging", sight=2)
    state = jax.device_get(env.reset(jax.random.key(0))[0])
    scene = env.draw(state)
    row, column = (int(x) for x in state.agents[0])
    assert scene.sights[0] == ["rectangle", (column - 2) * 40, (row - 2) * 40, (column + 3) * 40, (row + 3) * 40]
    assert not make("foraging").draw(state).sights, "where everything is seen there is nothing to bound"


@pytest.mark.slow
def test_every_member_of_a_group_has_an_episode_of_its_own():
    """One that always defects, and tit-for-tat: what each did, and what was predicted of it."""
    env = make("prisoners_dilemma", rounds=5)
    focal = BasicMAC(env.spec, MODEL)
    agent = jax.jit(focal.init_params)(jax.random.key(0))
    names = ["always_defect", "tit_for_tat"]
    mac = ScriptedMAC(env.spec, *(REGISTRY[env.spec.name][name](env.spec) for name in names))
    group = PolicyGroup(mac, jnp.arange(2), (0, 1))
    first, second = recording.record_each(env, focal, agent, group, jax.random.key(2), None, "me", names)
    assert [first.seats, second.seats] == [["me", "always_defect"], ["me", "tit_for_tat"]]
    assert (first.actions[:, 1] == 1).all()
    np.testing.assert_array_equal(second.actions[1:, 1], second.actions[:-1, 0])
    assert second.actions[0, 1] == 0
    for episode in (first, second):
        np.testing.assert_array_equal(episode.shown[0].taken[:, 0], episode.actions[:, 1])
        # The naive model's embedding are the predicted probabilities.
        np.testing.assert_allclose(episode.embedding, episode.shown[0].values[:, 0].mean(0), rtol=1e-5)
        np.testing.assert_array_equal(np.nanargmax(episode.shown[1].values[:, 0], -1), episode.actions[:, 0])
        assert len(episode.scenes) == 6


def test_a_matrix_game_draws_the_last_joint_action():
    env = make("prisoners_dilemma")
    assert env.action_names == ("cooperate", "defect")
    state, _ = env.reset(jax.random.key(0))

    def chosen(state):
        return (np.asarray(env.render(state)) == CHOSEN).all(-1)

    assert not chosen(state).any()
    defected, _ = env.step(state, jnp.array([0, 1]), jax.random.key(0))
    rows, columns = np.nonzero(chosen(defected))
    assert rows.max() < 180, "the first row: agent 1 cooperates"
    assert columns.min() > 180, "the second column: agent 2 defects"
    three = make("matrix_game", payoff=np.zeros((2, 2, 2)).tolist())
    state, _ = three.step(three.reset(jax.random.key(0))[0], jnp.array([0, 1, 1]), jax.random.key(0))
    assert three.render(state).size == (300, 300)

"""Replays: what stands beside the board is what the focal agent inferred, and the lines around it are true."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from omg.components.episode_buffer import refine
from omg.controllers import BasicMAC
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.envs.grid import COLOURS
from omg.envs.matrix_game import CHOSEN
from omg.evaluation import replay
from omg.opponents import REGISTRY
from omg.runners import PolicyGroup

MODEL = {
    "policy_model": "rnn", "rnn_hidden_dim": 4, "rnn_cell": "gru", "layer_norm": True, "agent_output_type": "q",
    "test_greedy": True, "epsilon_finish": 0.05, "action_selector": "epsilon_greedy", "obs_last_action": True,
    "obs_agent_id": True, "am_model": "base_am", "am_hidden_dim": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def episode(foraging):
    """An untrained agent that predicts actions, with a scripted partner."""
    focal = BasicMAC(foraging.spec, MODEL)
    agent = jax.jit(focal.init_params)(jax.random.key(0))
    group = PolicyGroup(
        ScriptedMAC(foraging.spec, REGISTRY["foraging"]["nearest_food"](foraging.spec)), jnp.arange(1), (0,)
    )
    mac = MultiModuleMAC(foraging.spec, focal, (0,), (Side(group.mac, (1,), 1),))
    states, batch = replay.play_episode(foraging, mac, TeamPolicies(agent, (group.policies,)), jax.random.key(1), 2)
    return focal, agent, group, states, batch


def test_predictions_stand_beside_the_actions_that_were_taken(episode, foraging, monkeypatch):
    focal, agent, _, states, batch = episode
    panels = [[("", foraging.render(state))] for state in states]
    drawn = []
    monkeypatch.setattr(replay, "bars", lambda *args: drawn.append(args) or panels[0][0][1])
    replay.add_predictions(foraging, focal, agent, panels, refine(batch, 2))
    assert len(drawn) == len(states)
    for t, (_, probabilities, alive, names, _, first, taken) in enumerate(drawn[:-1]):
        assert probabilities.shape == (1, 6)
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert names == ["stay", "up", "down", "left", "right", "load"]
        assert (first, bool(alive[0])) == (1, True)
        assert taken[0] == int(batch.actions[0, t, 1])


def test_the_line_above_a_frame_counts_steps_and_rewards(episode, foraging, monkeypatch):
    *_, states, batch = episode
    said = []
    monkeypatch.setattr(replay, "side_by_side", lambda env, panel, title, legend: said.append((title, legend)))
    replay.framed(foraging, [[]] * len(states), batch, ["me", "other"])
    reward = np.asarray(batch.reward[0])
    steps = len(states) - 1
    assert said[0] == (f"step 0 of {steps}    return so far: 0.00 (of the focal agent: 0.00)", ["me", "other"])
    own, team = reward[:, 0].sum(), reward.sum()
    assert team > 0, "the partner finds food"
    assert said[-1][0] == f"step {steps} of {steps}    return so far: {team:.2f} (of the focal agent: {own:.2f})"


def test_bars_are_as_high_as_their_probabilities_and_in_the_agents_colour(foraging):
    panel = np.asarray(replay.bars(foraging, np.array([[0.25, 0.75]]), np.array([True]), ["a", "b"], (230, 124), 1))
    filled = (panel == COLOURS[1]).all(-1)
    low, high = filled[:, 60].sum(), filled[:, 160].sum()
    assert low == pytest.approx(25, abs=2)
    assert high == pytest.approx(75, abs=2)
    dead = np.asarray(replay.bars(foraging, np.array([[0.25, 0.75]]), np.array([False]), ["a", "b"], (230, 124), 1))
    assert not (dead == COLOURS[1]).all(-1)[:, 60].any()


@pytest.mark.parametrize(("agents", "actions"), [(1, 70), (26, 36)])
def test_bars_of_many_agents_and_actions_fit_into_a_battle(foraging, agents, actions):
    rows, alive = np.full((agents, actions), 1 / actions), np.ones(agents, bool)
    panel = replay.bars(foraging, rows, alive, [str(i) for i in range(actions)], (416, 416), 1, np.zeros(agents, int))
    assert panel.size == (416, 416)


def test_a_focal_replay_names_the_seats(episode, foraging, tmp_path):
    focal, agent, group, *_ = episode
    path = replay.save_focal_replay(foraging, focal, agent, group, jax.random.key(1), tmp_path / "r.gif")
    with Image.open(path) as gif:
        board = foraging.render(episode[3][0]).size
        assert gif.size == (2 * board[0] + 6, board[1] + 4 * replay.CAPTION), "title, captions and two lines of legend"


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

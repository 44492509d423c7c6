"""Probes: what is read from samples with a known answer, and what an agent loses with embeddings of other episodes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.cli import main
from omg.evaluation.probing import Samples, history, next_reached, read, read_all, shuffled
from tests.conftest import play


def test_a_probe_reads_what_is_linear_and_nothing_from_noise():
    rng = np.random.default_rng(0)
    classes = rng.integers(3, size=(600, 1))
    clear = np.eye(3)[classes[:, 0]] + 0.1 * rng.normal(size=(600, 3))
    half = np.arange(600) % 2 == 0
    assert read(clear, classes, half).accuracy == 1.0
    noise = read(rng.normal(size=(600, 3)), classes, half)
    assert 0.2 < noise.accuracy < 0.45
    assert 0.2 < noise.most_frequent < 0.45


def test_columns_are_read_apart_and_missing_ones_do_not_count():
    rng = np.random.default_rng(1)
    first = rng.integers(2, size=400)
    second = np.where(np.arange(400) % 4 < 2, -1, 0)
    reading = read(np.eye(2)[first], np.stack([first, second], 1), np.arange(400) % 2 == 0)
    assert reading.accuracy == 1.0
    frequent = (np.mean(first == np.bincount(first).argmax()) * 400 + 200) / 600
    assert abs(reading.most_frequent - frequent) < 0.1


def test_actions_are_read_with_other_partners_and_partners_in_other_episodes():
    """Every partner names its next action in a language of its own: none can be read with others. Partners can."""
    rng = np.random.default_rng(2)
    member, episode = np.repeat(np.arange(4), 200), np.tile(np.arange(200), 4)
    action = rng.integers(2, size=800)
    x = np.zeros((800, 8))
    x[np.arange(800), 2 * member + action] = 1
    targets = {"next action": action[:, None], "partner": member[:, None]}
    found = read_all(Samples({"input": x}, targets, member, episode))
    assert found["next action"]["input"].accuracy < 0.65
    assert found["partner"]["input"].accuracy == 1.0


def test_history_holds_the_last_inputs():
    own = jnp.arange(1.0, 5.0)[:, None]
    np.testing.assert_array_equal(history(own, 3), [[1, 0, 0], [2, 1, 0], [3, 2, 1], [4, 3, 2]])


def test_the_next_goal_is_the_first_that_is_reached_from_now_on():
    reached = jnp.array([-1, 2, -1, 0, 1])[:, None, None, None]
    filled = jnp.array([1.0, 1, 1, 1, 0])[:, None, None]
    np.testing.assert_array_equal(next_reached(reached, filled)[:, 0, 0, 0], [2, 2, 0, 0, -1])


def test_shuffled_embeddings_are_those_of_other_episodes(foraging):
    from omg.components.episode_buffer import all_agents
    from omg.controllers import BasicMAC
    from omg.modules.am import Seen

    mac = BasicMAC(foraging.spec, {"rnn_hidden_dim": 4, "am_model": "liam_am", "am_hidden_dim": 4, "liam_embed_dim": 3})
    params = mac.init_params(jax.random.key(0))
    seen = mac.seen(all_agents(play(foraging, 4), 2))
    now, memory = Seen(seen.own[0], seen.s[0]), jnp.zeros((4, 2, 4))
    embedding, after = mac.am.infer(params, now, memory)
    other, after_shuffled = shuffled(mac).am.infer(params, now, memory)
    np.testing.assert_array_equal(other, embedding[jnp.array([2, 3, 0, 1])])
    np.testing.assert_array_equal(after_shuffled, after)
    np.testing.assert_array_equal(
        mac.am.infer(params, now, memory)[0], embedding, err_msg="the agent itself is the same"
    )


def test_omg_probe_writes_a_table_and_a_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["probe", "--checkpoint_path=zoo:prisoners_dilemma/liam", "--test_nepisode=4"]
    assert main(words) == 2
    assert "--pool=" in capsys.readouterr().err
    assert main([*words, "--pool=zoo:prisoners_dilemma", "--run_dir=probed"]) == 0
    found = json.loads((tmp_path / "probed" / "probe.json").read_text())
    assert list(found["readable"]["partner"]) == [
        "most frequent",
        "input",
        "last 5 inputs",
        "policy's memory",
        "embedding",
    ]
    assert (
        found["readable"]["next action"]["embedding"]["mean"]
        > found["readable"]["next action"]["most frequent"]["mean"]
    )
    assert found["return"]["lost"]["mean"] == pytest.approx(
        found["return"]["own"]["mean"] - found["return"]["shuffled"]["mean"]
    )
    assert found["return"]["lost"]["mean"] > 2, "the policy uses what LIAM infers"
    assert (tmp_path / "probed" / "probe.png").stat().st_size > 5000

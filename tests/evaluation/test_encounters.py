"""Evaluation with pool members: statistics, subgoal hits, a saved agent restored exactly, and finding its VAE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg import artifacts
from omg.build import build
from omg.commands.common import load_player
from omg.controllers.scripted_controller import ScriptedMAC
from omg.evaluation.encounters import Encounter, hits
from omg.evaluation.statistics import estimate, interquartile_mean
from omg.modules.vae import VAE
from omg.runners import PolicyGroup
from omg.utils import checkpoints
from omg.utils.settings import UserError
from tests.helpers import configuration
from tests.test_with_partners import BOARD, SMALL, SMALL_OMG, stand_ins


def test_the_interquartile_mean_averages_the_middle_half():
    assert interquartile_mean(np.array([0, 1, 2, 3, 4, 5, 6, 100.0])) == 3.5
    # Of three values the outer two count for a twelfth each, the middle one for a third: half of the weight.
    np.testing.assert_allclose(interquartile_mean(np.array([0.0, 1.0, 5.0])), (0 / 12 + 1 / 3 + 5 / 12) / 0.5)


def test_intervals_contain_the_mean_and_shrink_with_more_seeds():
    rng = np.random.default_rng(0)
    few, many = (estimate(rng.normal(1.0, 0.3, (n, 4))) for n in (3, 30))
    assert few.low < few.mean < few.high
    assert many.high - many.low < few.high - few.low
    one = estimate(np.array([[1.0, 3.0]]))
    assert one.low == one.high == one.mean == 2.0


def test_a_hit_means_that_the_nearest_state_lies_within_the_horizon():
    """Latents 0, 1, 2, …: a subgoal at 3.1 is hit from steps 1 and 2 with H = 2, not from 0 or 3."""
    latents = jnp.arange(6.0)[:, None, None, None]
    inferred = jnp.full((6, 1, 1, 1), 3.1)
    filled = jnp.array([1, 1, 1, 1, 0, 0.0])[:, None, None]
    assert hits(inferred, latents, filled, 2)[:4, 0, 0].tolist() == [0, 1, 1, 0]
    # The last state of the episode is the one after its last step; later time steps do not count.
    far = jnp.full((6, 1, 1, 1), 9.0)
    assert hits(far, latents, filled, 2)[:4, 0, 0].tolist() == [0, 0, 1, 1]


@pytest.fixture(scope="module")
def saved(foraging, tmp_path_factory):
    """A checkpoint of iql_omg, as a run writes it."""
    experiment = build(configuration("iql_omg", "foraging", **SMALL, **SMALL_OMG, **BOARD), stand_ins(foraging))
    state = experiment.loop.init()
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    files = experiment.learner.files(state.learner)
    manifest = {"seeds": [1], "config": experiment.config, "counters": {}}
    checkpoints.save(folder, 10, jax.device_get(files), manifest, 1)
    return state, checkpoints.find(folder)


def test_a_restored_agent_plays_the_same_episodes(saved, foraging):
    state, found = saved
    player = load_player(found, foraging)
    policy = ScriptedMAC(foraging.spec, lambda obs, avail, seat, key: jnp.int32(0))
    group = PolicyGroup(policy, jnp.zeros(1, jnp.int32), (7,))
    encounter = Encounter(foraging, player.mac, group, 8, player.vae)
    before = encounter.play(state.learner.params, jax.random.key(0))[0]
    after = encounter.play(player.params[0], jax.random.key(0))[0]
    assert before.numbers == after.numbers
    assert after.member == 7
    assert {"return", "focal_return", "ep_length", "subgoal_hit_ratio", "latent_distance"} <= set(after.numbers)
    assert after.embeddings.shape == (8, 3)
    files = set(found.manifest["files"])
    assert {f"{n}.safetensors" for n in ("agent", "opt", "vae", "cvae", "cond_rnn", "fc")} <= files


def test_a_vae_that_does_not_fit_is_refused_with_both_values(foraging, tmp_path):
    config = configuration("iql_omg", "foraging", **SMALL, **SMALL_OMG, **BOARD) | {"local_results_path": str(tmp_path)}
    with pytest.raises(UserError, match=r"omg pretrain --config=iql_omg --vae_latent_dim=3 .*--env-config=foraging"):
        artifacts.find("vae", foraging.spec, config)
    card = artifacts.card_of("vae", foraging.spec, config) | {"obs_is_state": True, "size": 99}
    vae = VAE(99, 4, 3, jax.random.key(0))
    checkpoints.save(tmp_path / "vaes" / "one" / "checkpoints", 1, {"vae": jax.device_get(vae)}, {"vae": card}, 1)
    with pytest.raises(UserError, match="made with obs_is_state True, this run has False: add --obs_is_state=True"):
        artifacts.find("vae", foraging.spec, config | {"vae_path": str(tmp_path / "vaes" / "one")})
    with pytest.raises(UserError, match="none that fits"):
        artifacts.find("vae", foraging.spec, config)
    fits = VAE(9, 4, 3, jax.random.key(1))
    card = artifacts.card_of("vae", foraging.spec, config)
    checkpoints.save(tmp_path / "vaes" / "two" / "checkpoints", 1, {"vae": jax.device_get(fits)}, {"vae": card}, 1)
    found = artifacts.find("vae", foraging.spec, config)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), fits, found)))
    with pytest.raises(UserError, match="vae_latent_dim 3, this run has 5: add --vae_latent_dim=3"):
        artifacts.find("vae", foraging.spec, config | {"vae_latent_dim": 5, "vae_path": str(tmp_path / "vaes" / "two")})

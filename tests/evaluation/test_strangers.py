"""Measures among strangers: statistics, hits, and a saved agent that acts as it did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers import RuleMAC
from omg.evaluation.statistics import estimate, interquartile_mean
from omg.evaluation.strangers import Meeting, hits
from omg.modules.vae import VAE
from omg.opponents.pool import Kind
from omg.parts import build
from omg.playing import load_player
from omg.utils import checkpoints, vaes
from omg.utils.settings import UserError
from tests.helpers import configuration
from tests.test_among_others import BOARD, SMALL, stand_ins


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert interquartile_mean(np.array([0, 1, 2, 3, 4, 5, 6, 100.0])) == 3.5
    # Of three values the outer two count for a twelfth each, the middle one for a third: half of everything.
    np.testing.assert_allclose(interquartile_mean(np.array([0.0, 1.0, 5.0])), (0 / 12 + 1 / 3 + 5 / 12) / 0.5)


def test_intervals_hold_the_mean_and_shrink_with_seeds():
    rng = np.random.default_rng(0)
    few, many = (estimate(rng.normal(1.0, 0.3, (n, 4))) for n in (3, 30))
    assert few.low < few.mean < few.high
    assert many.high - many.low < few.high - few.low
    one = estimate(np.array([[1.0, 3.0]]))
    assert one.low == one.high == one.mean == 2.0


def test_a_hit_is_the_nearest_state_lying_within_the_horizon():
    """States on a line, one unit a step: a guess of place 3.1 hits from steps 1 and 2 with H = 2, not from 0 or 3."""
    latents = jnp.arange(6.0)[:, None, None, None]
    guess = jnp.full((6, 1, 1, 1), 3.1)
    filled = jnp.array([1, 1, 1, 1, 0, 0.0])[:, None, None]
    assert hits(guess, latents, filled, 2)[:4, 0, 0].tolist() == [0, 1, 1, 0]
    # The last state of the episode is that after its last step; later slots are nobody's.
    far = jnp.full((6, 1, 1, 1), 9.0)
    assert hits(far, latents, filled, 2)[:4, 0, 0].tolist() == [0, 0, 1, 1]


@pytest.fixture(scope="module")
def saved(foraging, tmp_path_factory):
    """A checkpoint of iql_omg, as a run writes it."""
    parts = build(configuration("iql_omg", "foraging", **SMALL, **BOARD), stand_ins(foraging))
    state = parts.loop.init()
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    content = parts.learner.parts(state.learner)
    manifest = {"seeds": [1], "config": parts.config, "counters": {}}
    checkpoints.save(folder, 10, jax.device_get(content), manifest, 1)
    return state, checkpoints.find(folder)


def test_a_saved_agent_acts_as_it_did(saved, foraging):
    state, found = saved
    player = load_player(found, foraging)
    always = Kind(RuleMAC(foraging.spec, lambda obs, avail, seat, key: jnp.int32(0)), jnp.zeros(1, jnp.int32), (7,))
    meeting = Meeting(foraging, player.mac, always, 8, player.vae)
    before = meeting.play(state.learner.params, jax.random.key(0))[0]
    after = meeting.play(player.seeds[0], jax.random.key(0))[0]
    assert before.numbers == after.numbers
    assert after.member == 7
    assert {"return", "focal_return", "ep_length", "subgoal_hit_ratio", "latent_distance"} <= set(after.numbers)
    assert after.embeddings.shape == (8, 3)
    files = set(found.manifest["files"])
    assert {f"{n}.safetensors" for n in ("agent", "opt", "vae", "cvae", "cond_rnn", "fc")} <= files


def test_a_vae_for_the_other_input_is_refused_with_both_sizes(foraging, tmp_path):
    config = configuration("iql_omg", "foraging", **SMALL, **BOARD) | {"local_results_path": str(tmp_path)}
    with pytest.raises(UserError, match=r"omg pretrain --config=iql_omg --vae_latent_dim=3 .*--env-config=foraging"):
        vaes.find(foraging.spec, config)
    card = vaes.card_of(foraging.spec, config) | {"obs_is_state": True, "size": 99}
    vae = VAE(99, 4, 3, jax.random.key(0))
    checkpoints.save(tmp_path / "vaes" / "one" / "checkpoints", 1, {"vae": jax.device_get(vae)}, {"vae": card}, 1)
    with pytest.raises(UserError, match=r"is of the state \(99 numbers\), this run needs one of the observation \(9"):
        vaes.find(foraging.spec, config | {"vae_path": str(tmp_path / "vaes" / "one")})
    with pytest.raises(UserError, match="none that fits"):
        vaes.find(foraging.spec, config)
    fits = VAE(9, 4, 3, jax.random.key(1))
    card = vaes.card_of(foraging.spec, config)
    checkpoints.save(tmp_path / "vaes" / "two" / "checkpoints", 1, {"vae": jax.device_get(fits)}, {"vae": card}, 1)
    found = vaes.find(foraging.spec, config)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), fits, found)))
    with pytest.raises(UserError, match="vae_latent_dim 3, this run 5: add --vae_latent_dim=3"):
        vaes.find(foraging.spec, config | {"vae_latent_dim": 5, "vae_path": str(tmp_path / "vaes" / "two")})

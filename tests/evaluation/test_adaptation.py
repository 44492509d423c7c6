"""Meeting the same co-players again: measures by hand, and tit-for-tat that remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers import MoodMAC, RuleMAC
from omg.envs import make
from omg.evaluation.adaptation import BINS, Adaptation, by_part, last_kind, steps_to_half
from omg.opponents import REGISTRY as RULES

NOBODY = jnp.zeros(1, jnp.int32)


def test_parts_of_an_episode():
    """Everybody counts from its first step to its last, however short its time."""
    playing = jnp.zeros((1, 12, 2)).at[0, :10, 0].set(1).at[0, :4, 1].set(1)
    value = jnp.arange(12.0)[None, :, None] * jnp.array([1.0, 10.0])
    means = np.asarray(by_part(value, playing))[0]
    assert means.shape == (BINS,)
    second = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    np.testing.assert_allclose(means, [(t + 10 * u) / 2 for t, u in zip(range(10), second, strict=True)])
    one_step = jnp.zeros((1, 12, 2)).at[0, 0, 1].set(1)
    np.testing.assert_allclose(by_part(value + 7, one_step)[0], 7, err_msg="a life of one step is in every part")
    assert np.isnan(by_part(value, jnp.zeros_like(playing))).all()


def test_steps_until_the_belief_is_there_for_good():
    belief = jnp.array([[[0.2, 0.9], [0.6, 0.9], [0.4, 0.9], [0.7, 0.1], [0.8, 0.1]]])
    playing = jnp.ones((1, 5, 2)).at[0, 3:, 1].set(0)
    assert steps_to_half(belief, playing)[0] == pytest.approx((3 + 0) / 2), (
        "a relapse counts, the time after leaving not"
    )
    assert np.isnan(steps_to_half(belief, jnp.zeros_like(playing))[0]), "nobody reached anything"


def test_the_last_goal_reached():
    kinds = jnp.array([0, 0, 1])
    reached = jnp.array([[-1, 1, -1], [0, -1, 2], [-1, -1, -1]])
    assert last_kind(reached, kinds).tolist() == [0, 1, -1]


@pytest.fixture(scope="module")
def hunt():
    return make("stag_hunt")


def test_tit_for_tat_does_what_was_done_to_it(hunt):
    always = {name: RULES["stag_hunt"][name](hunt.spec) for name in ("always_stag", "always_hare")}
    others = MoodMAC(hunt.spec, always["always_stag"], always["always_hare"])
    met = {
        name: Adaptation(hunt, RuleMAC(hunt.spec, rule), others, 32, 3, friendly=1).play(
            None, NOBODY, jax.random.key(0)
        )
        for name, rule in always.items()
    }
    unfriendly = met["always_hare"]
    assert unfriendly.focal_return.shape == (3, 32)
    assert (unfriendly.kind == 0).all()
    assert unfriendly.team_return[0].mean() > 10, "at first they hunt the stag"
    np.testing.assert_allclose(unfriendly.team_return[1:], 4, err_msg="then everybody takes a hare")
    friendly = met["always_stag"]
    caught = friendly.kind[:-1] == 1
    assert (friendly.team_return[1:][caught] >= 10).all(), "who hunted the stag is met by stag hunters"
    assert friendly.team_return[1:][~caught].mean() < 5

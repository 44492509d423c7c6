"""Meeting the same co-players again: measures by hand, and tit-for-tat that remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.controllers import MoodMAC, RuleMAC
from omg.envs import make
from omg.evaluation.adaptation import BINS, Adaptation, by_part, elapsed, last_kind, steps_to_half
from omg.opponents import REGISTRY as RULES

NOBODY = jnp.zeros(1, jnp.int32)


def test_parts_of_an_episode():
    playing = jnp.zeros((1, 12, 2)).at[0, :10, 0].set(1).at[0, :4, 1].set(1)
    part = np.asarray(elapsed(playing))
    assert part[0, :10, 0].tolist() == list(range(10))
    assert part[0, :4, 1].tolist() == [0, 2, 5, 7], "each agent's own time"
    value = jnp.arange(12.0)[None, :, None] * jnp.array([1.0, 10.0])
    means = np.asarray(by_part(value, jnp.asarray(part), playing))[0]
    assert means[0] == 0
    assert means[2] == pytest.approx((2 + 10) / 2)
    assert means[9] == 9
    nothing = np.asarray(by_part(value, jnp.asarray(part), jnp.zeros_like(playing)))
    assert np.isnan(nothing).all()
    assert nothing.shape == (1, BINS)


def test_steps_until_the_belief_is_there_for_good():
    belief = jnp.array([[[0.2, 0.9], [0.6, 0.9], [0.4, 0.9], [0.7, 0.1], [0.8, 0.1]]])
    playing = jnp.ones((1, 5, 2)).at[0, 3:, 1].set(0)
    assert steps_to_half(belief, playing)[0] == pytest.approx((3 + 0) / 2), (
        "a relapse counts, the time after leaving not"
    )


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

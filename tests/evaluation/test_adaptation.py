"""Meeting the same co-players again: measures by hand, and tit-for-tat that remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.adapting import _rules, only_some
from omg.controllers import FocalMAC, HopMAC, MoodMAC, RuleMAC
from omg.envs import make
from omg.evaluation.adaptation import MOMENTS, Adaptation, at_moments, last_kind, steps_to_half
from omg.opponents import REGISTRY as RULES
from omg.utils.settings import UserError


def keys(n=1):
    return jax.random.split(jax.random.key(0), n)


def test_moments_of_an_episode():
    """Everybody counts from before its first action to after its last, however short its time."""
    playing = jnp.zeros((1, 12, 2)).at[0, :10, 0].set(1).at[0, :4, 1].set(1)
    before = jnp.arange(12.0)[None, :, None] * jnp.array([1.0, 10.0])
    means = np.asarray(at_moments(before, before + 100, playing))[0]
    assert means.shape == (MOMENTS,)
    first = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 109]
    second = [0, 0, 10, 10, 20, 20, 20, 30, 30, 130, 130]
    np.testing.assert_allclose(means, (np.array(first) + second) / 2)
    one_step = jnp.zeros((1, 12, 2)).at[0, 0, 1].set(1)
    np.testing.assert_allclose(at_moments(before + 7, before + 107, one_step)[0], [7] * 6 + [107] * 5)
    assert np.isnan(at_moments(before, before, jnp.zeros_like(playing))).all()


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
    in_turn = jnp.array([[0, 1]])
    met = {
        name: Adaptation(hunt, RuleMAC(hunt.spec, rule), others, 32, 3, friendly=1).play(None, in_turn, keys())[0][0]
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


def test_kinds_and_seeds_in_one_program(hunt):
    """Everybody's meetings come back under the right name: hare hunters leave a stag hunter alone with the stag."""
    rules = [RULES["stag_hunt"][name](hunt.spec) for name in ("always_stag", "always_hare")]
    others, focal = MoodMAC(hunt.spec, *rules), RuleMAC(hunt.spec, *rules)
    program = Adaptation(hunt, focal, others, 16, 2, kinds=2, seeds=2)
    met = program.play(jnp.array([0, 1]), jnp.array([[0, 0], [1, 1]]), keys(2))
    assert [len(seeds) for seeds in met] == [2, 2]
    assert met[0][0].focal_return.shape == (2, 16)
    caught = np.array([[(m.kind == 1).mean() for m in seeds] for seeds in met])
    assert caught[0, 0] > 0.3, "a stag hunter among stag hunters"
    assert caught[1, 0] == caught[0, 1] == caught[1, 1] == 0, "alone no stag, and a hare hunter wants none"
    assert (met[1][0].kind == -1).all()
    assert (met[1][1].kind == 0).all()
    np.testing.assert_allclose(met[1][1].team_return, 4)


def test_beliefs_of_several_agents_about_several_kinds(hunt):
    """What each agent believes of each kind of co-player follows that kind alone, from episode to episode."""
    rules = [RULES["stag_hunt"][name](hunt.spec) for name in ("always_stag", "always_hare")]
    mac = HopMAC(hunt, {"simulations": 2, "goal_draws": 1, "hop_hidden_dim": 4, "hop_alpha": 0.7})
    agents = jax.vmap(mac.init_networks)(keys(2))
    program = Adaptation(hunt, mac, MoodMAC(hunt.spec, *rules), 8, 3, kinds=2, seeds=2)
    met = program.play(agents, jnp.array([[0, 0], [1, 1]]), keys(2))
    for kind, seeds in enumerate(met):
        for one in seeds:
            assert one.goal_belief.shape == (3, 8, MOMENTS)
            first = np.nanmean(one.kind_belief[..., 0], 1)
            np.testing.assert_allclose(first[0], 0.475, atol=1e-3, err_msg="strangers are taken for either")
            assert first[1] > 0.55, "and then for what they were"
            if kind == 1:
                np.testing.assert_allclose(first[1], 0.7 * 0.475 + 0.3, atol=2e-3, err_msg="everybody took a hare")
                np.testing.assert_allclose(first[2], 0.7 * first[1] + 0.3, atol=2e-3)
    assert not np.array_equal(met[0][0].goal_belief, met[0][1].goal_belief), "two agents are not one"


def test_written_rules_share_a_controller(hunt):
    (together,) = _rules(hunt, ["always_hare", "nearest_prey", "tit_for_tat"])
    assert together.friendly == 1
    hare, nearest, in_turn = np.asarray(together.kind.policies)
    assert hare[0] == hare[1] != nearest[0] == nearest[1]
    assert in_turn[1] == hare[0] != in_turn[0]
    assert [aim is None for aim in together.aims] == [False, False, True], "tit-for-tat cannot say what it is after"
    alone = together.only(1)
    assert alone.names == ("nearest_prey",)
    np.testing.assert_array_equal(alone.kind.policies, [nearest])


def test_the_same_boards_leave_only_beliefs_to_differ(hunt):
    """Who believes nothing fares the same on the same board, and otherwise on another."""
    rules = [RULES["stag_hunt"][name](hunt.spec) for name in ("always_stag", "nearest_prey")]
    others, focal = MoodMAC(hunt.spec, *rules), RuleMAC(hunt.spec, *rules)

    def returns(same_boards):
        program = Adaptation(hunt, focal, others, 16, 2, same_boards=same_boards)
        return program.play(jnp.array([0]), jnp.array([[1, 1]]), keys())[0][0].focal_return

    same, other = returns(True), returns(False)
    np.testing.assert_array_equal(same[0], same[1])
    assert not np.array_equal(other[0], other[1])
    np.testing.assert_array_equal(same[0], other[0], err_msg="the first meeting is the same either way")


def test_only_some_co_players(hunt):
    everybody = _rules(hunt, ["always_stag", "always_hare", "nearest_prey", "tit_for_tat"])
    (some,) = only_some(everybody, ["tit_for_tat", "always_hare"])
    assert some.names == ("always_hare", "tit_for_tat")
    np.testing.assert_array_equal(some.kind.policies, np.asarray(everybody[0].kind.policies)[[1, 3]])
    assert only_some(everybody, None) is everybody
    with pytest.raises(UserError, match=r"nobody here is called always_stags: .*always_stag, always_hare"):
        only_some(everybody, ["always_stags"])


def test_an_agent_model_hands_on_what_it_inferred(hunt):
    """With `carry_over` an episode starts from what was inferred in the one before it."""
    config = {"am_model": "omg_am", "vae_latent_dim": 4, "cond_rnn_dim": 8, "rnn_hidden_dim": 8, "carry_over": True}
    mac = FocalMAC(hunt.spec, config)
    agents = jax.vmap(lambda key: {"agent": mac.init_agent(key), **mac.am.init(key)})(keys(2))
    others = RuleMAC(hunt.spec, RULES["stag_hunt"]["always_hare"](hunt.spec))
    program = Adaptation(hunt, mac, others, 8, 3, seeds=2)
    given, play = [], program.runner.play

    def watched(*args):
        jax.debug.callback(lambda prior: given.append(np.asarray(prior)), args[5].trained, ordered=True)
        return play(*args)

    program.runner.play = watched
    program.play(agents, jnp.zeros(1, jnp.int32), keys(2))
    jax.effects_barrier()
    first, second, third = given
    assert first.shape == (2, 8, 4)
    assert not first.any()
    assert (abs(second).sum(-1) > 0).all(), "every meeting left something"
    assert not np.array_equal(second, third)

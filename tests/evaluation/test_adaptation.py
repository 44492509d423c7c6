"""Encounters of several episodes: measures, reciprocal co-players, beliefs, and the choice of co-players."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.commands.adapt import choose_co_players, show, summarise
from omg.controllers import BasicMAC, HopMAC
from omg.controllers.scripted_controller import ReciprocalMAC, ScriptedMAC
from omg.envs import make
from omg.evaluation.adaptation import POINTS, Adaptation, at_points, last_type, steps_to_half
from omg.opponents import REGISTRY as SCRIPTED
from omg.opponents.co_players import mixtures, only_some, scripted_co_players
from omg.utils.settings import UserError


def keys(n=1):
    return jax.random.split(jax.random.key(0), n)


def test_points_of_an_episode_span_each_co_players_own_steps():
    """From before its first action to after its last, however early it left."""
    playing = jnp.zeros((1, 12, 2)).at[0, :10, 0].set(1).at[0, :4, 1].set(1)
    before = jnp.arange(12.0)[None, :, None] * jnp.array([1.0, 10.0])
    means = np.asarray(at_points(before, before + 100, playing))[0]
    assert means.shape == (POINTS,)
    first = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 109]
    second = [0, 0, 10, 10, 20, 20, 20, 30, 30, 130, 130]
    np.testing.assert_allclose(means, (np.array(first) + second) / 2)
    one_step = jnp.zeros((1, 12, 2)).at[0, 0, 1].set(1)
    np.testing.assert_allclose(at_points(before + 7, before + 107, one_step)[0], [7] * 6 + [107] * 5)
    assert np.isnan(at_points(before, before, jnp.zeros_like(playing))).all()


def test_steps_until_the_belief_stays_above_one_half():
    belief = jnp.array([[[0.2, 0.9], [0.6, 0.9], [0.4, 0.9], [0.7, 0.1], [0.8, 0.1]]])
    playing = jnp.ones((1, 5, 2)).at[0, 3:, 1].set(0)
    assert steps_to_half(belief, playing)[0] == pytest.approx((3 + 0) / 2), (
        "a later fall below one half counts, steps after leaving do not"
    )
    assert np.isnan(steps_to_half(belief, jnp.zeros_like(playing))[0]), "no co-player reached a goal"


def test_the_type_of_the_last_goal_reached():
    types = jnp.array([0, 0, 1])
    reached = jnp.array([[-1, 1, -1], [0, -1, 2], [-1, -1, -1]])
    assert last_type(reached, types).tolist() == [0, 1, -1]


def in_all_seats(*pairs):
    """For each type of co-player its two policies, in three seats."""
    return jnp.repeat(jnp.array(pairs)[:, None], 3, 1)


@pytest.fixture(scope="module")
def hunt():
    return make("stag_hunt")


@pytest.mark.slow
def test_tit_for_tat_repeats_what_the_agent_did_in_the_previous_episode(hunt):
    always = {name: SCRIPTED["stag_hunt"][name](hunt.spec) for name in ("always_stag", "always_hare")}
    others = ReciprocalMAC(hunt.spec, always["always_stag"], always["always_hare"])
    in_turn = in_all_seats([0, 1])

    def play(policy):
        program = Adaptation(hunt, ScriptedMAC(hunt.spec, policy), others, 32, 3, friendly=1)
        return program.play(None, in_turn, keys())[0][0]

    met = {name: play(policy) for name, policy in always.items()}
    unfriendly = met["always_hare"]
    assert unfriendly.focal_return.shape == (3, 32)
    assert (unfriendly.goal_type == 0).all()
    assert unfriendly.team_return[0].mean() > 10, "in the first episode they hunt the stag"
    np.testing.assert_allclose(unfriendly.team_return[1:], 4, err_msg="then all agents catch a hare")
    friendly = met["always_stag"]
    caught = friendly.goal_type[:-1] == 1
    assert (friendly.team_return[1:][caught] >= 10).all(), "after cooperation the co-players hunt the stag"
    assert friendly.team_return[1:][~caught].mean() < 5


def test_types_of_co_players_and_seeds_in_one_program(hunt):
    """Every result belongs to its own pair: hare hunters leave a stag hunter alone with the stag."""
    policies = [SCRIPTED["stag_hunt"][name](hunt.spec) for name in ("always_stag", "always_hare")]
    others, focal = ReciprocalMAC(hunt.spec, *policies), ScriptedMAC(hunt.spec, *policies)
    program = Adaptation(hunt, focal, others, 16, 2, types=2, seeds=2)
    met = program.play(jnp.array([0, 1]), in_all_seats([0, 0], [1, 1]), keys(2))
    assert [len(seeds) for seeds in met] == [2, 2]
    assert met[0][0].focal_return.shape == (2, 16)
    caught = np.array([[(m.goal_type == 1).mean() for m in seeds] for seeds in met])
    assert caught[0, 0] > 0.3, "a stag hunter among stag hunters"
    assert caught[1, 0] == caught[0, 1] == caught[1, 1] == 0, (
        "a lone hunter catches no stag; a hare hunter pursues none"
    )
    assert (met[1][0].goal_type == -1).all()
    assert (met[1][1].goal_type == 0).all()
    np.testing.assert_allclose(met[1][1].team_return, 4)


@pytest.mark.slow
def test_beliefs_of_several_agents_about_several_types_of_co_players(hunt):
    """Each agent's belief about each type of co-player depends on that type alone, from episode to episode."""
    policies = [SCRIPTED["stag_hunt"][name](hunt.spec) for name in ("always_stag", "always_hare")]
    mac = HopMAC(hunt, {"simulations": 2, "goal_draws": 1, "hop_hidden_dim": 4, "goal_memory": "types"})
    agents = jax.jit(jax.vmap(mac.init_params))(keys(2))
    goals = [policy.goal for policy in policies]
    program = Adaptation(hunt, mac, ReciprocalMAC(hunt.spec, *policies), 8, 3, types=2, seeds=2, goals=goals)
    met = program.play(agents, in_all_seats([0, 0], [1, 1]), keys(2), [[[0, 0, 0], [1, 1, 1]]] * 2)
    for number, seeds in enumerate(met):
        for one in seeds:
            assert one.goal_belief.shape == (3, 8, POINTS)
            start = one.true_type_belief[0, :, 0]
            np.testing.assert_allclose(start, 0.475, atol=1e-3, err_msg="also in a goal that is not reached")
            of_goal = 0.475 / (4 if number else 1)
            np.testing.assert_allclose(one.true_belief[0, :, 0], of_goal, atol=1e-3, err_msg="one of four hares")
            first = np.nanmean(one.type_belief[..., 0], 1)
            np.testing.assert_allclose(first[0], 0.475, atol=1e-3, err_msg="the initial belief is uniform")
            assert first[1] > 0.55, "and then moves to their goal type"
            if number == 1:
                np.testing.assert_allclose(first[1], 0.7 * 0.475 + 0.3, atol=2e-3, err_msg="all caught a hare")
                np.testing.assert_allclose(first[2], 0.7 * first[1] + 0.3, atol=2e-3)
    assert not np.array_equal(met[0][0].goal_belief, met[0][1].goal_belief), "two seeds differ"
    # A co-player without a goal has the same rows in the table, without numbers.
    unknown = program.play(agents, in_all_seats([0, 0], [1, 1]), keys(2), [[[0, 0, 0], [-1, -1, -1]]] * 2)
    summary = {name: summarise(hunt, seeds) for name, seeds in zip(("stag", "random"), unknown, strict=True)}
    row = "belief in the true goal, halfway"
    assert np.isfinite(summary["stag"][row].mean)
    assert np.isnan(summary["random"][row].mean)
    show("hop", summary)


def test_scripted_co_players_share_a_controller(hunt):
    together = scripted_co_players(hunt, ["always_hare", "nearest_prey", "tit_for_tat"])
    assert together.friendly == 1
    (hare, *others), (nearest, *_), (in_turn, *_) = np.asarray(together.group.policies)
    assert all((other == hare).all() for other in others), "the same in all three seats"
    assert hare[0] == hare[1] != nearest[0] == nearest[1]
    assert in_turn[1] == hare[0] != in_turn[0]
    assert [goal[0] is None for goal in together.goals] == [False, False, True], "tit-for-tat has no goal function"
    alone = together.only(1)
    assert alone.names == ("nearest_prey",)
    np.testing.assert_array_equal(alone.group.policies, [[nearest] * 3])


def test_same_boards_repeats_the_start_and_the_random_numbers_of_every_episode(hunt):
    """An agent without beliefs has the same returns in all episodes, and otherwise different ones."""
    policies = [SCRIPTED["stag_hunt"][name](hunt.spec) for name in ("always_stag", "nearest_prey")]
    others, focal = ReciprocalMAC(hunt.spec, *policies), ScriptedMAC(hunt.spec, *policies)

    def returns(same_boards):
        program = Adaptation(hunt, focal, others, 16, 2, same_boards=same_boards)
        return program.play(jnp.array([0]), in_all_seats([1, 1]), keys())[0][0].focal_return

    same, other = returns(True), returns(False)
    np.testing.assert_array_equal(same[0], same[1])
    assert not np.array_equal(other[0], other[1])
    np.testing.assert_array_equal(same[0], other[0], err_msg="the first episode is the same either way")


@pytest.mark.slow
def test_a_team_has_one_policy_in_each_seat(hunt):
    """A stag hunter one place after the agent and hare hunters behind it: only that seat never catches a hare."""
    names = ["always_stag", "always_hare"]
    team = "always_stag+always_hare+always_hare"
    assert mixtures(hunt, names, ["always_hare", team]) == [team]
    everyone = scripted_co_players(hunt, [*names, team])
    pairs = np.asarray(everyone.group.policies)[2]
    assert pairs.tolist() == [[0, 0], [1, 1], [1, 1]]
    stag, hare = (everyone.goals[i][0] for i in range(2))
    assert everyone.goals[2] == (stag, hare, hare)
    assert everyone.numbers_of([hare, stag])[0][2] == [1, 0, 0]
    focal = ScriptedMAC(hunt.spec, SCRIPTED["stag_hunt"]["always_stag"](hunt.spec))
    program = Adaptation(hunt, focal, everyone.group.mac, 16, 1, types=3)
    met = program.play(None, everyone.group.policies, keys())[2][0]
    assert (met.goal_type == 1).mean() > 0.5, "two stag hunters catch the stag"
    np.testing.assert_allclose(met.team_return, np.where(met.goal_type == 1, 12, 2))


@pytest.mark.parametrize(
    ("team", "said"),
    [
        ("always_stag+nobody+always_hare", "no scripted policy 'nobody'"),
        ("always_stag+always_hare", "3 seats"),
        ("always_stag:always_hare:always_stag", "more than once"),
        ("always_stag:tit_for_tat", "changes by itself"),
    ],
)
def test_a_team_that_cannot_be_seated(hunt, team, said):
    with pytest.raises(UserError, match=said):
        mixtures(hunt, ["always_stag", "always_hare", "tit_for_tat"], [team])


def test_co_players_that_change_play_another_policy_in_the_second_half(hunt):
    """Four episodes with a hare hunter: it catches its hare; the three others hunt the stag, then hares."""
    changing = "always_stag:always_hare"
    names = ["always_stag", "always_hare", changing, "tit_for_tat"]
    everyone = scripted_co_players(hunt, names)
    assert np.asarray(everyone.group.policies)[2].tolist() == [[0, 1]] * 3
    assert everyone.changes == (False, False, True, False)
    stag, hare = everyone.goals[0][0], everyone.goals[1][0]
    assert [half[2] for half in everyone.numbers_of([hare, stag])] == [[1, 1, 1], [0, 0, 0]]
    assert everyone.only(2).changes == (True,)
    focal = ScriptedMAC(hunt.spec, SCRIPTED["stag_hunt"]["always_hare"](hunt.spec))
    arguments = (hunt, focal, everyone.group.mac, 16, 4, everyone.friendly, 4)
    program = Adaptation(*arguments, changes=everyone.changes)
    met = [of_type[0].team_return for of_type in program.play(None, everyone.group.policies, keys())]
    stags, hares, changed, reciprocal = met
    assert (stags >= 10).mean() > 0.9
    np.testing.assert_allclose(hares, 4)
    assert (changed[:2] >= 10).mean(1).min() > 0.9
    np.testing.assert_allclose(changed[2:], 4)
    np.testing.assert_allclose(reciprocal[1:], 4, err_msg="tit-for-tat answers the agent's hare at once")


def test_co_players_are_chosen_by_name(hunt):
    everyone = [scripted_co_players(hunt, ["always_stag", "always_hare", "nearest_prey", "tit_for_tat"])]
    (some,) = only_some(everyone, ["tit_for_tat", "always_hare"])
    assert some.names == ("always_hare", "tit_for_tat")
    np.testing.assert_array_equal(some.group.policies, np.asarray(everyone[0].group.policies)[[1, 3]])
    assert only_some(everyone, None) is everyone
    with pytest.raises(UserError, match=r"no co-player always_stags here: known are always_stag, always_hare"):
        only_some(everyone, ["always_stags"])


def test_carry_over_hands_the_embedding_to_the_next_episode(hunt):
    """An episode starts from the mean embedding of the one before it."""
    config = {"am_model": "omg_am", "vae_latent_dim": 4, "cond_rnn_dim": 8, "rnn_hidden_dim": 8, "carry_over": True}
    mac = BasicMAC(hunt.spec, config)
    agents = jax.jit(jax.vmap(mac.init_params))(keys(2))
    others = ScriptedMAC(hunt.spec, SCRIPTED["stag_hunt"]["always_hare"](hunt.spec))
    program = Adaptation(hunt, mac, others, 8, 3, seeds=2)
    given, play = [], program.runner.play

    def watched(*args, prior):
        jax.debug.callback(lambda prior: given.append(np.asarray(prior)), prior.trained, ordered=True)
        return play(*args, prior=prior)

    program.runner.play = watched
    program.play(agents, jnp.zeros(1, jnp.int32), keys(2))
    jax.effects_barrier()
    first, second, third = given
    assert first.shape == (2, 8, 4)
    assert not first.any()
    assert (abs(second).sum(-1) > 0).all(), "every encounter carries something over"
    assert not np.array_equal(second, third)


def test_scripted_strategies_have_goals_only_where_strategies_are_the_goals():
    """In a matrix game of three actions goals are actions, and tit-for-tat has none. It is a policy of its own here."""
    payoffs = [[[3, 0], [5, 1]], [[3, 5], [0, 1]]]
    repeated = scripted_co_players(make("matrix_game", payoffs=payoffs, rounds=4), ["tit_for_tat", "random"])
    assert repeated.friendly == -1
    (aim,), (none,) = repeated.goals
    assert int(aim(None)) == 2
    assert none is None
    larger = make("matrix_game", payoff=[[1, 2, 3]] * 3, rounds=4)
    assert scripted_co_players(larger, ["tit_for_tat"]).goals == ((None,),)
    assert "stochastic_0" not in choose_co_players(larger, {"pool": None}, None)[0].names
    for named in ("stochastic_0", "stochastic_0:tit_for_tat"):
        assert choose_co_players(larger, {"pool": None}, [named])[0].names == (named,)

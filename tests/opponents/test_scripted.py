"""Scripted partners against known behaviour: strategies of repeated matrix games, and cooks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg import config as configuration
from omg.build import make_env
from omg.components.episode_buffer import make_scheme
from omg.config import Command
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.opponents import REGISTRY
from omg.opponents.matrix_policies import MATRIX_GAME
from omg.runners import VectorRunner

C, D = 0, 1
ANSWERS = {
    "always_cooperate": [C, C, C, C, C, C],
    "always_defect": [D, D, D, D, D, D],
    "tit_for_tat": [C, C, D, D, C, D],
    "suspicious_tit_for_tat": [D, C, D, D, C, D],
    "win_stay_lose_shift": [C, C, D, C, C, D],
    "alternate": [C, D, C, D, C, D],
    "grim": [C, C, D, D, D, D],
    "tit_for_two_tats": [C, C, C, D, C, C],
    "patient_grim": [C, C, C, C, C, D],
    "memory_one_dcdc_d": [D, D, C, C, D, C],
    "memory_one_ddcd_c": [C, D, D, D, C, D],
}
"""What each answers to an opponent that plays C, D, D, C, D, …"""


@pytest.fixture(scope="module")
def dilemma():
    return make("matrix_game", rounds=6, payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]])


def answers(dilemma, names, given, seat):
    """`[strategy, game, round]`: all strategies and games in one program; the opponent sits in the other seat."""
    mac = ScriptedMAC(dilemma.spec, *(MATRIX_GAME[name](dilemma.spec) for name in names))

    def play(index, given):
        def step(carry, t):
            state, seen, memory = carry
            row = jax.tree.map(lambda x: x[None], seen)
            actions, memory = mac.select_actions(index, row, memory, jnp.int32(0), jax.random.key(3), True)
            joint = actions[0].at[1 - seat].set(given[t])
            return (*dilemma.step(state, joint, jax.random.key(0)), memory), joint[seat]

        start = (*dilemma.reset(jax.random.key(0)), mac.init_memory(index, 1))
        return jax.lax.scan(step, start, jnp.arange(6))[1]

    games = jax.vmap(jax.vmap(play, in_axes=(None, 0)), in_axes=(0, None))
    return np.asarray(jax.jit(games)(jnp.arange(len(names)), jnp.asarray(given)))


@pytest.mark.parametrize("seat", [0, 1])
def test_strategies_of_the_repeated_prisoners_dilemma(dilemma, seat):
    names = sorted(ANSWERS)
    for name, (actions,) in zip(names, answers(dilemma, names, [[C, D, D, C, D, D]], seat), strict=True):
        np.testing.assert_array_equal(actions, ANSWERS[name], err_msg=name)


def test_all_strategies_of_memory_one_differ_in_play(dilemma):
    """26 in all: seven have names of their own. The other strategies with names need a longer memory, or chance."""
    by_chance = ("random", "generous_tit_for_tat", "stochastic_")
    names = [name for name in MATRIX_GAME if not name.startswith(by_chance)]
    found = answers(dilemma, names, list(itertools.product([C, D], repeat=6)), 0)
    assert len({play.tobytes() for play in found}) == len(names)
    assert len(names) == 26 + len(["tit_for_two_tats", "patient_grim"])


def test_a_family_of_strategies_acts_like_its_members_one_by_one(dilemma):
    """Strategies that differ in a table alone are one branch of the program; their order does not matter."""
    names = ["stochastic_7", "random", "grim", "patient_grim", "stochastic_0", "tit_for_tat", "generous_tit_for_tat"]
    policies = [MATRIX_GAME[name](dilemma.spec) for name in names]
    mac = ScriptedMAC(dilemma.spec, *policies)
    assert len(mac.branches) == 4
    keys = jax.random.split(jax.random.key(0), 50)
    rounds = jnp.array([[1, *last] for last in ([1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0])] * 17, jnp.float32)[:50]
    seen = (jnp.zeros(50, jnp.int32), rounds, jnp.ones((50, 2), bool), jnp.ones(50, jnp.int32), keys)
    together = jax.jit(jax.vmap(lambda i: jax.vmap(lambda *s: mac.decide(i, *s))(*seen)[0]))(jnp.arange(len(names)))
    for taken, policy in zip(together, policies, strict=True):
        alone = ScriptedMAC(dilemma.spec, policy)
        np.testing.assert_array_equal(taken, jax.vmap(lambda *s, m=alone: m.decide(None, *s))(*seen)[0])


def test_generous_tit_for_tat_sometimes_forgives(dilemma):
    policy = MATRIX_GAME["generous_tit_for_tat"](dilemma.spec)
    after_defection = jnp.array([1, 1, 0, 0, 1.0])
    act = jax.jit(jax.vmap(lambda key: policy(after_defection, jnp.ones(2, bool), jnp.int32(0), key)))
    assert 0.2 < float((act(jax.random.split(jax.random.key(0), 400)) == C).mean()) < 0.4


def test_a_stochastic_strategy_cooperates_with_the_probabilities_of_its_table(dilemma):
    """The five numbers are drawn from its own number; here those of strategy 3, in the seat of the second agent."""
    policy = MATRIX_GAME["stochastic_3"](dilemma.spec)
    expected = np.random.default_rng(3).beta(0.5, 0.5, 5)
    act = jax.jit(jax.vmap(policy, in_axes=(None, None, None, 0)))
    keys = jax.random.split(jax.random.key(0), 2000)
    # The last actions of the other agent and its own.
    rounds = [[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0]]
    for last, chance in zip(rounds, expected, strict=True):
        taken = act(jnp.array([1, *last], jnp.float32), jnp.ones(2, bool), jnp.int32(1), keys)
        assert float((taken == C).mean()) == pytest.approx(chance, abs=0.04)


@pytest.fixture(scope="module")
def soups():
    """Mean number of soups of every pair of cooks in a layout."""
    pytest.importorskip("jaxmarl")

    def of(layout: str, *pairs: tuple[str, str]) -> list[float]:
        updates = [("env_args.layout", layout), ("env_args.episode_limit", 200)]
        env = make_env(configuration.load(Command(env_config="overcooked", updates=updates)))
        names = sorted({name for pair in pairs for name in pair})
        cooks = [REGISTRY["overcooked"][name](env.spec) for name in names]
        seats = jnp.array([[names.index(name) for name in pair] for pair in pairs])

        def play(pair):
            def act(obs, avail_actions, seat, key):
                return jax.lax.switch(pair[seat], cooks, obs, avail_actions, seat, key)

            runner = VectorRunner(env, ScriptedMAC(env.spec, act), *make_scheme(env.spec), 8)
            return runner.play(None, jnp.int32(0), jax.random.key(0), True, keep=False).stats.info["soups"].mean()

        return [float(x) for x in jax.jit(jax.vmap(play))(seats)]

    return of


@pytest.mark.slow
def test_cooks_deliver_soups_together_and_only_those_who_can_do_so_alone(soups):
    """An onion cook fills pots and a plate cook delivers: together they do what neither does with one of its kind."""
    pairs = [("onion", "plate"), ("plate", "onion"), ("independent", "static"), ("onion", "onion"), ("plate", "plate")]
    both, swapped, alone, onions, plates = soups("cramped_room", *pairs)
    assert min(both, swapped) >= 4
    assert alone >= 3
    assert onions == plates == 0


@pytest.mark.slow
def test_cooks_in_separate_rooms_pass_items_over_the_counter(soups):
    together, alone = soups("forced_coord", ("independent", "independent"), ("independent", "static"))
    assert together >= 3
    assert alone == 0


@pytest.fixture(scope="module")
def hunt_goals():
    """The goals that conditional hunters pursue on a board: the stag is 4 steps away, another hunter 2 from it.

    A function of the step and of what is there: `[policy]`, with the first hare as 0 and the stag as 2.
    """
    env = make("stag_hunt", grid_size=8, hunters=2, hares=2, stags=1)
    names = [name for name in REGISTRY["stag_hunt"] if name.startswith("stag_")]
    policies = [REGISTRY["stag_hunt"][name](env.spec) for name in names]
    mac = ScriptedMAC(env.spec, *policies)

    @jax.jit
    def decide(t, there, playing):
        hunt, _ = env.reset(jax.random.key(0))
        hunt = hunt._replace(
            hunters=jnp.array([[4, 4], [0, 6]]), prey=jnp.array([[6, 4], [4, 2], [2, 6]]), there=there, t=t,
            hunting=jnp.array([True, playing]),
        )  # fmt: skip
        _, seen = env.step(hunt, jnp.zeros(2, int), jax.random.key(0))
        steps = [
            mac.decide(jnp.int32(i), jnp.int32(0), seen.obs[0], seen.avail_actions[0], jnp.int32(0), jax.random.key(0))
            for i in range(len(names))
        ]
        return jnp.stack([policy.goal(seen.obs[0]) for policy in policies]), jnp.stack([step[0] for step in steps])

    def goals(t=0, there=(True, True, True), playing=True):
        of_all = decide(jnp.int32(t - 1), jnp.array(there), playing)
        return tuple(dict(zip(names, map(int, x), strict=True)) for x in of_all)

    return goals


@pytest.mark.parametrize(
    ("t", "hunters"),
    [
        (0, ["stag_for_2", "stag_for_20", "stag_within_4", "stag_within_7", "stag_joined_2", "stag_joined_5"]),
        (2, ["stag_for_3", "stag_for_20", "stag_within_4", "stag_joined_2"]),
        (16, ["stag_for_20", "stag_within_4", "stag_joined_2"]),
    ],
)
def test_a_conditional_hunter_pursues_the_stag_as_long_as_its_limit_holds(hunt_goals, t, hunters):
    goals, actions = hunt_goals(t)
    assert all(goals[name] == 2 for name in hunters)
    assert goals["stag_within_3"] == goals["stag_joined_1"] == 0
    if t == 16:
        assert goals["stag_for_16"] == goals["stag_for_2"] == 0
    if t == 2:
        assert goals["stag_for_2"] == 0
    # Up or to the right towards the stag, down to the nearest hare.
    toward = {2: {1, 4}, 0: {2}}
    assert all(actions[name] in toward[goals[name]] for name in goals), actions


def test_without_a_stag_or_another_hunter_a_conditional_hunter_takes_a_hare(hunt_goals):
    assert set(hunt_goals(there=(True, True, False))[0].values()) == {0}
    alone = hunt_goals(playing=False)[0]
    assert {alone[f"stag_joined_{n}"] for n in range(1, 6)} == {0}
    assert alone["stag_within_4"] == 2
    assert set(hunt_goals(there=(False, True, False))[0].values()) == {1}

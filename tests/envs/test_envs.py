"""The environments: steps computed by hand, and properties that hold for every environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jumanji.environments.routing.lbf.env import LevelBasedForaging
from jumanji.environments.routing.lbf.generator import RandomGenerator
from jumanji.environments.routing.lbf.types import Agent, Food, State

from omg.envs import make
from omg.envs.foraging import DOWN, LOAD, NOOP, RIGHT
from omg.utils.settings import UserError
from tests.conftest import TWO_STEP
from tests.helpers import scripted_return

ENVS = {
    "foraging": {"grid_size": 6, "players": 3, "food": 2, "max_level": 2},
    "predator_prey": {},
    "matrix_game": {"states": TWO_STEP},
    "jaxmarl": {"name": "MPE_simple_speaker_listener_v4"},
    "stag_hunt": {"stags": 2},
    "snowdrift": {},
}


@pytest.mark.parametrize("name", sorted(ENVS))
def test_time_steps_have_the_sizes_of_the_spec_and_steps_are_pure(name):
    env = make(name, **ENVS[name])
    spec, key = env.spec, jax.random.key(0)

    def checked(timestep):
        assert timestep.obs.shape == (spec.n_agents, spec.obs_size)
        assert timestep.state.shape == (spec.state_size,)
        assert timestep.avail_actions.shape == (spec.n_agents, spec.n_actions)
        assert timestep.reward.shape == timestep.alive.shape == (spec.n_agents,)
        assert timestep.terminated.shape == ()
        assert timestep.avail_actions.any(-1).all()
        for vector, storage in ((timestep.obs, spec.obs_storage), (timestep.state, spec.state_storage)):
            stored = jnp.round(vector / storage.scale).astype(storage.dtype) if storage.scale != 1 else vector
            np.testing.assert_array_equal(stored.astype(jnp.float32) * storage.scale, vector)

    state, timestep = jax.jit(env.reset)(key)
    checked(timestep)
    step = jax.jit(env.step)
    for t in range(min(4, spec.episode_limit)):
        actions = timestep.avail_actions.argmax(-1)
        again, _ = step(state, actions, jax.random.fold_in(key, t))
        state, timestep = step(state, actions, jax.random.fold_in(key, t))
        checked(timestep)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(
                jax.random.key_data(a) if a.dtype == key.dtype else a,
                np.asarray(jax.random.key_data(b) if b.dtype == key.dtype else b),
            )


@pytest.fixture(scope="module")
def board():
    env = make("foraging", grid_size=6, food=2)
    state, _ = jax.jit(env.reset)(jax.random.key(0))

    def placed(agents, food, eaten=(False, False)):
        return state._replace(agents=jnp.array(agents), food=jnp.array(food), eaten=jnp.array(eaten))

    return env, placed


def test_the_first_agent_to_load_food_gets_it(board):
    env, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]])
    state, timestep = env.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    np.testing.assert_allclose(timestep.reward, [0.5, 0.0])
    assert state.eaten.tolist() == [True, False]
    assert not timestep.terminated
    assert timestep.info["food_eaten"] == 0.5


def test_agents_cannot_enter_cells_of_agents_or_food(board):
    env, placed = board
    state = placed([[2, 2], [2, 4]], [[3, 2], [4, 4]])
    _, timestep = env.step(state, jnp.array([RIGHT, NOOP]), jax.random.key(0))
    state, _ = env.step(state, jnp.array([DOWN, NOOP]), jax.random.key(0))
    assert state.agents[0].tolist() == [2, 2]
    assert not timestep.avail_actions[0, RIGHT]


def test_foraging_terminates_when_all_food_is_eaten(board):
    env, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]], eaten=(False, True))
    _, timestep = env.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    assert timestep.terminated


def test_initial_foraging_boards_keep_food_apart_and_use_every_cell():
    """Food is off the border and not adjacent to food, no two items share a cell, and agents start on all cells."""
    env = make("foraging", grid_size=8, players=2, food=3)
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 2000))
    food, agents = np.asarray(states.food), np.asarray(states.agents)
    assert food.min() == 1
    assert food.max() == 6
    apart = np.abs(food[:, :, None] - food[:, None]).sum(-1) + 9 * np.eye(3, dtype=int)
    assert apart.min() == 2
    everyone = np.concatenate([food, agents], 1)
    assert (np.abs(everyone[:, :, None] - everyone[:, None]).sum(-1) + 9 * np.eye(5, dtype=int)).min() == 1
    assert len({tuple(p) for p in agents.reshape(-1, 2)}) == 64


@pytest.mark.parametrize(
    "settings",
    [
        {"grid_size": 6, "players": 3, "food": 2, "sight": 2, "max_level": 2, "penalty": 0.1},
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in (
                {"grid_size": 8, "players": 2, "food": 3},
                {"grid_size": 5, "players": 2, "food": 1, "sight": 3, "max_level": 3, "force_coop": True},
                {"grid_size": 6, "players": 2, "food": 2, "sight": 1, "max_level": 2, "penalty": 0.5},
            )
        ),
    ],
    ids=["sight 2", "all seen", "forced cooperation", "sight 1"],
)
def test_foraging_steps_equal_those_of_jumanji(settings):
    """The same boards and random actions in Jumanji itself: equal rewards, observations, masks and terminations."""
    env, boards = make("foraging", **settings), 64
    grid, players, food = (settings[key] for key in ("grid_size", "players", "food"))
    levels, together = max(settings.get("max_level", 1), 2), settings.get("force_coop", False)
    generator = RandomGenerator(grid, players, food, settings.get("sight") or grid, levels, together)
    game = LevelBasedForaging(generator, time_limit=500, penalty=settings.get("penalty", 0.0))
    ours, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), boards))
    assert int(ours.agent_level.max()) == settings.get("max_level", 1)

    def numbered(n):
        return jnp.broadcast_to(jnp.arange(n), (boards, n))

    theirs = State(
        agents=Agent(id=numbered(players), position=ours.agents, level=ours.agent_level, loading=ours.loading),
        food_items=Food(id=numbered(food), position=ours.food, level=ours.food_level, eaten=ours.eaten),
        step_count=jnp.zeros(boards, jnp.int32),
        key=jax.random.split(jax.random.key(0), boards),
    )
    step, their_step = jax.jit(jax.vmap(env.step)), jax.jit(jax.vmap(game.step))
    for t in range(40):
        # Half of the actions load, so that agents load together.
        actions = jnp.minimum(jax.random.randint(jax.random.key(t), (boards, players), 0, 11), LOAD)
        ours, timestep = step(ours, actions, jax.random.split(jax.random.key(t), boards))
        theirs, expected = their_step(theirs, actions)
        np.testing.assert_allclose(timestep.reward, expected.reward, atol=1e-6)
        np.testing.assert_allclose(timestep.obs * grid, expected.observation.agents_view, atol=1e-4)
        np.testing.assert_array_equal(timestep.avail_actions, expected.observation.action_mask)
        np.testing.assert_array_equal(timestep.terminated, theirs.food_items.eaten.all(-1))
        np.testing.assert_array_equal(ours.agents, theirs.agents.position)
    assert ours.eaten.any(), "food was loaded"


@pytest.mark.parametrize(
    ("name", "policy", "times"), [("foraging", "nearest_food", 1.5), ("predator_prey", "chase", 5.0)]
)
def test_a_scripted_policy_beats_random_play(name, policy, times):
    env = make(name)
    assert scripted_return(env, policy, 64) > times * max(scripted_return(env, "random", 64), 1.0 * (times > 2))


def test_a_fleeing_prey_is_harder_to_catch_than_a_still_one():
    still, flees = (make("predator_prey", prey=prey, hesitation=0.0, approach=0.0) for prey in ("still", "flee"))
    assert scripted_return(flees, "chase", 128) < scripted_return(still, "chase", 128)


def test_own_touches_add_up_to_the_teams():
    """`credit` changes who is paid for a touch, not how often the prey is touched."""
    own, team = (make("predator_prey", prey="still", approach=0.0, credit=credit) for credit in ("own", "team"))
    assert (own.spec.game_type, team.spec.game_type) == ("mixed", "cooperative")
    state, _ = own.reset(jax.random.key(0))
    game = state[0]
    # The first predator touches the prey, the second is beside it, the third far away.
    near = game.p_pos[3] + jnp.array([[0.05, 0.0], [0.0, own.touching * 1.5], [1.5, 0.0]])
    state = (game.replace(p_pos=game.p_pos.at[:3].set(near), p_vel=game.p_vel * 0), state[1])
    stay = jnp.zeros(3, jnp.int32)
    _, mine = jax.jit(own.step)(state, stay, jax.random.key(1))
    _, ours = jax.jit(team.step)(state, stay, jax.random.key(1))
    assert mine.reward.tolist() == [10.0, 0.0, 0.0]
    assert ours.reward.tolist() == [10.0, 10.0, 10.0]
    assert own.spec.team_reward(mine.reward) == team.spec.team_reward(ours.reward)
    assert mine.info["catches"] == ours.info["catches"] == 1


def test_the_two_step_game_pays_what_the_paper_says():
    env = make("matrix_game", states=TWO_STEP)
    for first, second, expected in (((0, 1), (1, 1), 7.0), ((1, 0), (1, 1), 8.0), ((1, 1), (0, 1), 1.0)):
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        state, timestep = env.step(state, jnp.array(first), jax.random.key(0))
        assert not timestep.terminated
        assert timestep.reward.tolist() == [0.0, 0.0]
        _, timestep = env.step(state, jnp.array(second), jax.random.key(0))
        assert timestep.terminated
        assert timestep.reward.tolist() == [expected, expected]


def test_a_repeated_game_observes_the_last_actions_and_ends_after_its_rounds():
    env = make("matrix_game", payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]], rounds=3)
    assert env.spec.game_type == "mixed"
    assert env.spec.episode_limit == 3
    state, timestep = jax.jit(env.reset)(jax.random.key(0))
    ends = []
    for _ in range(3):
        state, timestep = env.step(state, jnp.array([1, 0]), jax.random.key(0))
        ends.append(bool(timestep.terminated))
        assert timestep.reward.tolist() == [5.0, 0.0]
        assert timestep.obs[0].tolist() == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert ends == [False, False, True]


def test_game_types_of_matrix_games():
    assert make("matrix_game", payoff=[[1, 2], [3, 4]]).spec.game_type == "cooperative"
    pennies = make("matrix_game", payoffs=[[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]])
    assert pennies.spec.game_type == "zero-sum"
    three = make("matrix_game", payoff=np.arange(24).reshape(2, 3, 4).tolist())
    assert (three.spec.n_agents, three.spec.n_actions) == (3, 4)
    state, timestep = jax.jit(three.reset)(jax.random.key(0))
    assert timestep.avail_actions.sum(-1).tolist() == [2, 3, 4]
    assert three.step(state, jnp.array([1, 2, 3]), jax.random.key(0))[1].reward[0] == 23


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "needs either payoff"),
        ({"payoff": [[1, 2], [3]]}, "full tensor"),
        ({"payoffs": [[[1, 2], [3, 4]]]}, "n tensors of n dimensions"),
        ({"states": {"a": {"payoff": [[1, 2], [3, 4]], "next": "bb"}}}, "no state 'bb'"),
        ({"states": {"a": {"payoff": [[1, 2], [3, 4]], "next": "a"}}}, "episode_limit"),
        ({"payoff": [[1, 2], [3, 4]], "rounds": 0}, "1 or more"),
    ],
)
def test_an_invalid_matrix_game_raises_a_user_error(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        make("matrix_game", **settings)


def test_jaxmarl_environments_keep_their_state_and_available_actions():
    env = make("jaxmarl", name="HeuristicEnemySMAX")
    _, timestep = jax.jit(env.reset)(jax.random.key(0))
    assert env.spec.state_size != env.spec.n_agents * env.spec.obs_size
    assert not timestep.avail_actions.all()
    assert env.spec.game_type == "cooperative"


def test_agents_with_fewer_actions_have_the_rest_masked():
    env = make("jaxmarl", name="MPE_simple_speaker_listener_v4")
    _, timestep = jax.jit(env.reset)(jax.random.key(0))
    assert timestep.avail_actions.sum(-1).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("storm", "not supported"), ("ant_4x2", "brax"), ("jaxnav", "discrete")],
)
def test_an_unsupported_jaxmarl_environment_raises_a_user_error(name, complaint):
    with pytest.raises(UserError, match=complaint):
        make("jaxmarl", name=name)


def test_the_time_limit_is_not_a_termination():
    env = make("jaxmarl", name="MPE_simple_spread_v3", episode_limit=3)
    state, timestep = jax.jit(env.reset)(jax.random.key(0))
    for _ in range(3):
        state, timestep = env.step(state, jnp.zeros(3, jnp.int32), jax.random.key(0))
    assert not timestep.terminated


def test_the_spec_of_foraging():
    spec = make("foraging", grid_size=8).spec
    assert (spec.n_agents, spec.n_actions, spec.obs_size, spec.state_size) == (2, 6, 15, 15)
    assert (spec.episode_limit, spec.game_type) == (50, "mixed")


def test_an_agent_that_loads_food_reaches_that_goal(board):
    env, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]])
    assert env.goals(state).reached.tolist() == [-1, -1]
    after, timestep = env.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    assert env.goals(after).reached.tolist() == [0, -1]
    assert env.goals(after).open.tolist() == [False, True]
    way = np.asarray(env.goal_features(timestep.obs)) * [6, 6, 6, 6, 1, 1]
    np.testing.assert_allclose(way[0, 1], [2, 2, 4, 1, 2, 2], atol=1e-5)
    np.testing.assert_allclose(way[1, 1], [-2, -2, 4, 1, -2, -2], atol=1e-5)
    np.testing.assert_allclose(way[0, 0], 0, atol=1e-5, err_msg="the features of eaten food are zero")
    later, _ = env.step(after, jnp.array([NOOP, NOOP]), jax.random.key(0))
    assert env.goals(later).reached.tolist() == [-1, -1]


def test_food_eaten_earlier_is_not_reached_again(board):
    env, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]])
    state = state._replace(agent_level=jnp.array([1, 1]))
    state, _ = env.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    heavy = state._replace(food=jnp.array([[1, 2], [2, 1]]), food_level=jnp.array([1, 2]))
    after, timestep = env.step(heavy, jnp.array([LOAD, NOOP]), jax.random.key(0))
    assert not timestep.reward.any(), "the level of the other food is too high for one agent"
    assert env.goals(after).reached.tolist() == [-1, -1], "the food was eaten in an earlier step"


def test_a_predator_that_touches_the_prey_reaches_the_side_it_is_on():
    env = make("predator_prey", predators=2, obstacles=0)
    (game, catches), _ = jax.jit(env.reset)(jax.random.key(0))
    places = jnp.array([[0.2, -0.9 * env.touching], [0.9, 0.9], [0.2, 0.0]])
    state = (game.replace(p_pos=places, p_vel=jnp.zeros_like(places)), catches)
    goals = env.goals(state)
    assert goals.reached.tolist() == [env.goal_names.index("below"), -1]
    assert goals.open.all()
    timestep = env._timestep(state[0], env.game.get_obs(state[0]), jnp.zeros(2), catches)
    way = np.asarray(env.goal_features(timestep.obs))
    sides = {name: way[0, i, :2] for i, name in enumerate(env.goal_names)}
    np.testing.assert_allclose(sides["below"], [0, -0.1 * env.touching], atol=1e-6, err_msg="0.1 of the distance")
    np.testing.assert_allclose(sides["left"], [-env.touching, 0.9 * env.touching], atol=1e-6)
    np.testing.assert_allclose(env.goal_distance(timestep.obs)[0, 2], 0.1 * env.touching, atol=1e-6)


def test_goals_of_a_repeated_game_are_strategies_and_the_one_that_explains_the_actions_is_reached():
    """Four rounds: D, D, C, D against C, C, D, C, counted by hand."""
    env = make("matrix_game", payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]], rounds=4)
    state, seen = env.reset(jax.random.key(0))
    names = list(env.goal_names)
    assert names[:3] == ["always_cooperate", "always_defect", "tit_for_tat"]
    reached = []
    for joint in ([1, 0], [1, 0], [0, 1], [1, 0]):
        state, seen = env.step(state, jnp.array(joint), jax.random.key(0))
        reached.append(env.goals(state).reached.tolist())
    assert reached[:3] == [[-1, -1]] * 3, "a strategy is known at the end"
    found = dict(zip(names, state.explained.T.tolist(), strict=True))
    assert found["always_defect"] == [3, 1]
    assert found["always_cooperate"] == [1, 3]
    # Tit-for-tat would play C, C, C, D as the first agent and C, D, D, C as the second.
    assert found["tit_for_tat"] == [2, 3]
    assert found["alternate"] == [2, 3]
    # Both act in two ways in the same situation, so no strategy of memory one explains more than three actions of four.
    assert reached[3] == [-1, -1]
    (first, second), _ = env.own_first(jnp.stack([seen.obs, seen.obs]))
    assert first.tolist() == [1, 0, 1, 1, 0]
    assert second.tolist() == [1, 1, 0, 0, 1]


def test_a_strategy_that_alone_explains_all_actions_is_the_goal_reached():
    """Win-stay-lose-shift meets every situation, so that no other strategy explains all of its actions."""
    env = make("matrix_game", payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]], rounds=6)
    state, _ = env.reset(jax.random.key(0))
    reached = []
    for joint in ([0, 0], [0, 1], [1, 0], [1, 1], [0, 0], [0, 0]):
        state, _ = env.step(state, jnp.array(joint), jax.random.key(0))
        reached.append(int(env.goals(state).reached[0]))
    assert reached[:-1] == [-1] * 5, "a strategy is known at the end"
    assert env.goal_names[reached[-1]] == "win_stay_lose_shift"


def test_a_strategy_that_explains_too_few_actions_is_not_reached():
    """Seven defections among ten actions: always_defect explains more than any other strategy, but not enough."""
    env = make("matrix_game", payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]], rounds=10)
    state, _ = env.reset(jax.random.key(0))
    own, other = [1, 0, 1, 1, 1, 1, 0, 0, 1, 1], [0, 1, 0, 0, 1, 1, 1, 1, 1, 1]
    for joint in zip(own, other, strict=True):
        state, _ = env.step(state, jnp.array(joint), jax.random.key(0))
    most = state.explained[0].max()
    assert env.goal_names[int(state.explained[0].argmax())] == "always_defect"
    assert (int(most), int((state.explained[0] == most).sum())) == (7, 1)
    assert int(env.goals(state).reached[0]) == -1


def test_a_time_limit_before_the_last_round_is_the_end_of_a_strategy():
    env = make("matrix_game", payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]], rounds=10, episode_limit=6)
    state, _ = env.reset(jax.random.key(0))
    for joint in ([0, 0], [0, 1], [1, 0], [1, 1], [0, 0], [0, 0]):
        state, _ = env.step(state, jnp.array(joint), jax.random.key(0))
    assert env.goal_names[int(env.goals(state).reached[0])] == "win_stay_lose_shift"

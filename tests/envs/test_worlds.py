"""The worlds: rules on boards and tables one can check by hand, and what every world promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jumanji.environments.routing.lbf.env import LevelBasedForaging

from omg.envs import make
from omg.envs.foraging import DOWN, LOAD, NOOP, RIGHT
from omg.utils.settings import UserError
from tests.conftest import TWO_STEP
from tests.helpers import scripted_return

WORLDS = {
    "foraging": {"grid_size": 6, "players": 3, "food": 2, "max_level": 2},
    "predator_prey": {},
    "matrix_game": {"states": TWO_STEP},
    "jaxmarl": {"name": "MPE_simple_speaker_listener_v4"},
    "stag_hunt": {"stags": 2},
    "snowdrift": {},
}


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_what_a_world_shows_has_the_sizes_of_its_spec(name):
    world = make(name, **WORLDS[name])
    spec, key = world.spec, jax.random.key(0)

    def checked(shown):
        assert shown.obs.shape == (spec.n_agents, spec.obs_size)
        assert shown.state.shape == (spec.state_size,)
        assert shown.avail_actions.shape == (spec.n_agents, spec.n_actions)
        assert shown.reward.shape == shown.alive.shape == (spec.n_agents,)
        assert shown.terminated.shape == ()
        assert shown.avail_actions.any(-1).all()
        for seen, storage in ((shown.obs, spec.obs_storage), (shown.state, spec.state_storage)):
            stored = jnp.round(seen / storage.scale).astype(storage.dtype) if storage.scale != 1 else seen
            np.testing.assert_array_equal(stored.astype(jnp.float32) * storage.scale, seen)

    state, shown = jax.jit(world.reset)(key)
    checked(shown)
    step = jax.jit(world.step)
    for t in range(min(4, spec.episode_limit)):
        actions = shown.avail_actions.argmax(-1)
        again, _ = step(state, actions, jax.random.fold_in(key, t))
        state, shown = step(state, actions, jax.random.fold_in(key, t))
        checked(shown)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(
                jax.random.key_data(a) if a.dtype == key.dtype else a,
                np.asarray(jax.random.key_data(b) if b.dtype == key.dtype else b),
            )


@pytest.fixture(scope="module")
def board():
    world = make("foraging", grid_size=6, food=2)
    state, _ = world.reset(jax.random.key(0))

    def placed(agents, food, eaten=(False, False)):
        return state.replace(
            agents=state.agents.replace(position=jnp.array(agents)),
            food_items=state.food_items.replace(position=jnp.array(food), eaten=jnp.array(eaten)),
        )

    return world, placed


def test_whoever_loads_first_has_the_food(board):
    world, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]])
    state, shown = world.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    np.testing.assert_allclose(shown.reward, [0.5, 0.0])
    assert state.food_items.eaten.tolist() == [True, False]
    assert not shown.terminated
    assert shown.info["food_eaten"] == 0.5


def test_agents_do_not_walk_through_each_other_or_through_food(board):
    world, placed = board
    state = placed([[2, 2], [2, 4]], [[3, 2], [4, 4]])
    _, shown = world.step(state, jnp.array([RIGHT, NOOP]), jax.random.key(0))
    state, _ = world.step(state, jnp.array([DOWN, NOOP]), jax.random.key(0))
    assert state.agents.position[0].tolist() == [2, 2]
    assert not shown.avail_actions[0, RIGHT]


def test_the_game_ends_with_the_last_food(board):
    world, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]], eaten=(False, True))
    _, shown = world.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    assert shown.terminated


def test_fresh_boards_are_fair():
    """Food off the edge and apart, nobody on anybody; every free cell is used by agents sooner or later."""
    world = make("foraging", grid_size=8, players=2, food=3)
    states, _ = jax.jit(jax.vmap(world.reset))(jax.random.split(jax.random.key(0), 2000))
    food, agents = np.asarray(states.food_items.position), np.asarray(states.agents.position)
    assert food.min() == 1
    assert food.max() == 6
    apart = np.abs(food[:, :, None] - food[:, None]).sum(-1) + 9 * np.eye(3, dtype=int)
    assert apart.min() == 2
    everyone = np.concatenate([food, agents], 1)
    assert (np.abs(everyone[:, :, None] - everyone[:, None]).sum(-1) + 9 * np.eye(5, dtype=int)).min() == 1
    assert len({tuple(p) for p in agents.reshape(-1, 2)}) == 64


def test_steps_are_jumanjis():
    """The same board and actions through Jumanji itself."""
    world = make("foraging", grid_size=6, players=2, food=2, max_level=2)
    game = LevelBasedForaging(world.game._generator, time_limit=51)
    state, _ = world.reset(jax.random.key(3))
    theirs = state
    for t in range(10):
        actions = jax.random.randint(jax.random.key(t), (2,), 0, 6)
        state, shown = world.step(state, actions, jax.random.key(0))
        theirs, timestep = game.step(theirs, actions)
        np.testing.assert_array_equal(shown.reward, timestep.reward)
        np.testing.assert_allclose(shown.obs * 6, timestep.observation.agents_view, atol=1e-5)


@pytest.mark.parametrize(
    ("world", "rule", "times"), [("foraging", "nearest_food", 1.5), ("predator_prey", "chase", 5.0)]
)
def test_a_written_rule_beats_random_play(world, rule, times):
    env = make(world)
    assert scripted_return(env, rule, 64) > times * max(scripted_return(env, "random", 64), 1.0 * (times > 2))


def test_a_prey_that_flees_is_harder_to_catch_than_one_that_stands():
    still, flees = (make("predator_prey", prey=prey, hesitation=0.0, approach=0.0) for prey in ("still", "flee"))
    assert scripted_return(flees, "chase", 128) < scripted_return(still, "chase", 128)


def test_the_two_step_game_pays_what_the_paper_says():
    world = make("matrix_game", states=TWO_STEP)
    for first, second, expected in (((0, 1), (1, 1), 7.0), ((1, 0), (1, 1), 8.0), ((1, 1), (0, 1), 1.0)):
        state, _ = world.reset(jax.random.key(0))
        state, shown = world.step(state, jnp.array(first), jax.random.key(0))
        assert not shown.terminated
        assert shown.reward.tolist() == [0.0, 0.0]
        _, shown = world.step(state, jnp.array(second), jax.random.key(0))
        assert shown.terminated
        assert shown.reward.tolist() == [expected, expected]


def test_a_repeated_game_shows_what_everybody_did_and_ends_after_its_rounds():
    world = make("matrix_game", payoffs=[[[3, 0], [5, 1]], [[3, 5], [0, 1]]], rounds=3)
    assert world.spec.kind == "mixed"
    assert world.spec.episode_limit == 3
    state, shown = world.reset(jax.random.key(0))
    ends = []
    for _ in range(3):
        state, shown = world.step(state, jnp.array([1, 0]), jax.random.key(0))
        ends.append(bool(shown.terminated))
        assert shown.reward.tolist() == [5.0, 0.0]
        assert shown.obs[0].tolist() == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert ends == [False, False, True]


def test_kinds_of_matrix_games():
    assert make("matrix_game", payoff=[[1, 2], [3, 4]]).spec.kind == "cooperative"
    pennies = make("matrix_game", payoffs=[[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]])
    assert pennies.spec.kind == "zero-sum"
    three = make("matrix_game", payoff=np.arange(24).reshape(2, 3, 4).tolist())
    assert (three.spec.n_agents, three.spec.n_actions) == (3, 4)
    state, shown = three.reset(jax.random.key(0))
    assert shown.avail_actions.sum(-1).tolist() == [2, 3, 4]
    assert three.step(state, jnp.array([1, 2, 3]), jax.random.key(0))[1].reward[0] == 23


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "needs either payoff"),
        ({"payoff": [[1, 2], [3]]}, "full tensor"),
        ({"payoffs": [[[1, 2], [3, 4]]]}, "n tensors of n dimensions"),
        ({"states": {"a": {"payoff": [[1, 2], [3, 4]], "next": "bb"}}}, "no state 'bb'"),
        ({"states": {"a": {"payoff": [[1, 2], [3, 4]], "next": "a"}}}, "episode_limit"),
        ({"payoff": [[1, 2], [3, 4]], "rounds": 0}, "one round or more"),
    ],
)
def test_a_matrix_game_that_makes_no_sense_gets_a_sentence(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        make("matrix_game", **settings)


def test_jaxmarl_worlds_bring_their_state_and_available_actions():
    world = make("jaxmarl", name="HeuristicEnemySMAX")
    _, shown = jax.jit(world.reset)(jax.random.key(0))
    assert world.spec.state_size != world.spec.n_agents * world.spec.obs_size
    assert not shown.avail_actions.all()
    assert world.spec.kind == "cooperative"


def test_agents_with_fewer_actions_are_masked():
    world = make("jaxmarl", name="MPE_simple_speaker_listener_v4")
    _, shown = world.reset(jax.random.key(0))
    assert shown.avail_actions.sum(-1).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("hanabi", "episode_limit"), ("storm", "does not fit"), ("ant_4x2", "brax"), ("jaxnav", "discrete")],
)
def test_a_jaxmarl_world_that_does_not_fit_is_refused(name, complaint):
    with pytest.raises(UserError, match=complaint):
        make("jaxmarl", name=name)


def test_running_out_of_time_is_not_the_end_of_the_game():
    world = make("jaxmarl", name="MPE_simple_spread_v3", episode_limit=3)
    state, shown = world.reset(jax.random.key(0))
    for _ in range(3):
        state, shown = world.step(state, jnp.zeros(3, jnp.int32), jax.random.key(0))
    assert not shown.terminated


def test_worlds_from_python():
    spec = make("foraging", grid_size=8).spec
    assert (spec.n_agents, spec.n_actions, spec.obs_size, spec.state_size) == (2, 6, 15, 15)
    assert (spec.episode_limit, spec.kind) == (50, "mixed")


def test_who_loads_food_has_reached_it(board):
    world, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]])
    assert world.goals(state).reached.tolist() == [-1, -1]
    after, shown = world.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    assert world.goals(after).reached.tolist() == [0, -1]
    assert world.goals(after).open.tolist() == [False, True]
    way = np.asarray(world.goal_features(shown.obs)) * [6, 6, 6, 6, 1, 1]
    np.testing.assert_allclose(way[0, 1], [2, 2, 4, 1, 2, 2], atol=1e-5)
    np.testing.assert_allclose(way[1, 1], [-2, -2, 4, 1, -2, -2], atol=1e-5)
    np.testing.assert_allclose(way[0, 0], 0, atol=1e-5, err_msg="what is eaten leads nowhere")
    later, _ = world.step(after, jnp.array([NOOP, NOOP]), jax.random.key(0))
    assert world.goals(later).reached.tolist() == [-1, -1]


def test_what_was_eaten_before_is_not_reached_again(board):
    world, placed = board
    state = placed([[1, 1], [5, 5]], [[1, 2], [3, 3]])
    state = state.replace(agents=state.agents.replace(level=jnp.array([1, 1])))
    state, _ = world.step(state, jnp.array([LOAD, NOOP]), jax.random.key(0))
    heavy = state.food_items.replace(position=jnp.array([[1, 2], [2, 1]]), level=jnp.array([1, 2]))
    after, shown = world.step(state.replace(food_items=heavy), jnp.array([LOAD, NOOP]), jax.random.key(0))
    assert not shown.reward.any(), "the other food is too heavy for one"
    assert world.goals(after).reached.tolist() == [-1, -1], "and what was eaten before is not eaten again"


def test_the_prey_is_caught_from_a_side():
    world = make("predator_prey", predators=2, obstacles=0)
    (game, catches), _ = world.reset(jax.random.key(0))
    places = jnp.array([[0.2, -0.9 * world.touching], [0.9, 0.9], [0.2, 0.0]])
    state = (game.replace(p_pos=places, p_vel=jnp.zeros_like(places)), catches)
    goals = world.goals(state)
    assert goals.reached.tolist() == [world.goal_names.index("below"), -1]
    assert goals.open.all()
    shown = world._show(state[0], world.game.get_obs(state[0]), jnp.zeros(2), catches)
    way = np.asarray(world.goal_features(shown.obs))
    sides = {name: way[0, i, :2] for i, name in enumerate(world.goal_names)}
    np.testing.assert_allclose(sides["below"], [0, -0.1 * world.touching], atol=1e-6, err_msg="nearly there")
    np.testing.assert_allclose(sides["left"], [-world.touching, 0.9 * world.touching], atol=1e-6)
    np.testing.assert_allclose(world.goal_distance(shown.obs)[0, 2], 0.1 * world.touching, atol=1e-6)

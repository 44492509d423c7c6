"""HOP: best responses confirmed by exhaustive search, beliefs along episodes, and what each setting switches off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.beliefs import close
from omg.components.episode_buffer import make_scheme
from omg.controllers import HopMAC
from omg.controllers.hand_over import HandOverSettings, plans_now
from omg.controllers.hop_planning import Planner
from omg.envs import make
from omg.envs.stag_hunt import Hunt
from omg.learners.hop_learner import HopLearner, label, pursued_in_hindsight
from omg.modules.hop_models import HopModels
from omg.runners import VectorRunner

KEY = jax.random.key(0)
GAMMA = 0.9
STATES = {
    # The larger immediate reward leads to the state with small rewards.
    "start": {"payoffs": [[[3, 0], [1, 1]], [[0, 0], [0, 0]]], "next": [["poor", "poor"], ["rich", "poor"]]},
    "poor": {"payoffs": [[[0, 1], [1, 0]], [[0, 0], [0, 0]]]},
    "rich": {"payoffs": [[[9, 0], [0, 4]], [[0, 0], [0, 0]]]},
}


class FixedModels(HopModels):
    """Co-players take the action that `policy` gives for their goal; policy and value of the agent are flat."""

    def __init__(self, mac, policy):
        super().__init__(mac.env, mac.models.goals, mac.settings.hop_hidden_dim, mac.settings.use_goals)
        self.policy = policy

    def co_player_logits(self, model, obs, goal, avail_actions):
        return jnp.where(avail_actions, 1e3 * self.policy(goal), -1e9)

    def policy_value(self, agent, obs, others, avail_actions):
        return jnp.where(avail_actions, 0.0, -1e9), jnp.zeros(obs.shape[:-1])


def mac_with(env, policy, models=FixedModels, **config):
    """HOP's controller with co-players that act by `policy`."""
    mac = HopMAC(env, {"simulations": 300, "goal_draws": 2, "gamma": GAMMA, "goal_memory": "types", **config})
    mac.models = models(mac, policy)
    mac.planner = Planner(env, mac.models, mac.settings)
    return mac


def stays(goal):
    return jnp.broadcast_to(jax.nn.one_hot(0, 5), (*goal.shape[:-1], 5))


def one_row(tree):
    return jax.tree.map(lambda x: x[None], tree)


def exhaustive(env, state, shown, other, depth):
    """The values of the first agent's actions by exhaustive search; the other agent always takes action `other`."""
    step = jax.jit(env.step)

    def values(state, avail, t):
        found = np.full(env.spec.n_actions, -np.inf)
        for action in np.flatnonzero(np.asarray(avail[0])):
            after, seen = step(state, jnp.array([action, other]), KEY)
            goes_on = bool(seen.alive[0]) and not bool(seen.terminated) and t + 1 < depth
            ahead = values(after, seen.avail_actions, t + 1).max() if goes_on else 0.0
            found[action] = float(seen.reward[0]) + GAMMA * ahead
        return found

    return values(state, shown.avail_actions, 0)


def planner(mac):
    @jax.jit
    def plan(state, shown, belief):
        seats, networks = jnp.zeros((1, 1), int), {"agent": None, "model": None}
        return mac.planner.plan(
            networks, one_row(shown), belief[None], jnp.int32(0), seats, one_row(state), KEY, test_mode=True
        ).q[0, 0]

    return plan


def test_the_best_response_in_a_game_of_three_states():
    env = make("matrix_game", states=STATES)
    plan = planner(mac_with(env, lambda goal: goal[..., :2], simulations=100))
    state, shown = jax.jit(env.reset)(KEY)
    for other in (0, 1):
        q = plan(state, shown, jnp.broadcast_to(jax.nn.one_hot(other, 3), (2, 3)))
        expected = exhaustive(env, state, shown, other, 2)
        np.testing.assert_allclose(q, expected, atol=0.5)
        assert q.argmax() == expected.argmax()
    assert expected[0] < 3, "the larger immediate reward is not the best"


def hunt_of(hunters, prey, **changes):
    """A state of the stag hunt with two hunters; the hare comes before the stag."""
    hunt = Hunt(
        jnp.array(hunters), jnp.array(prey), jnp.ones(2, bool), jnp.ones(2, bool), jnp.full(2, -1), jnp.int32(0)
    )
    return hunt._replace(**changes)


def test_the_stag_with_a_partner_beside_it_and_the_hare_without():
    env = make("stag_hunt", grid_size=3, hunters=2, hares=1, stags=1, episode_limit=6)
    # A wide search finds the larger delayed reward without a value network.
    plan = planner(mac_with(env, stays, simulations=300, c_puct=5.0))
    no_goal = jnp.broadcast_to(jax.nn.one_hot(2, 3), (2, 3))
    for other, caught in (([2, 2], 1), ([2, 0], 0)):
        state = hunt_of([[0, 1], other], [[0, 0], [2, 2]])
        shown = env._timestep(state, jnp.zeros(2))
        while shown.alive[0]:
            q = jnp.where(shown.avail_actions[0], plan(state, shown, no_goal), -jnp.inf)
            expected = exhaustive(env, state, shown, 0, 4)
            assert expected[int(q.argmax())] == pytest.approx(expected.max()), "no action is better"
            state, shown = env.step(state, jnp.array([q.argmax(), 0]), KEY)
        assert env.goals(state).reached[0] == caught


@pytest.fixture(scope="module")
def hunters():
    env = make("stag_hunt", grid_size=4, hunters=2, hares=2, stags=1, episode_limit=6)
    small = {"simulations": 8, "goal_draws": 2, "train_simulations": 4, "train_goal_draws": 1, "hop_hidden_dim": 8}
    return env, small | {"goal_memory": "types"}


def played(env, config, test_mode=True):
    """The controller, its networks, four episodes of a team of them, and the memory at their ends."""
    mac = HopMAC(env, config)
    scheme, groups = make_scheme(env.spec)
    params = jax.jit(mac.init_params)(KEY)
    runner = VectorRunner(env, mac, scheme | mac.scheme, groups, 4)
    played = jax.jit(lambda key: runner.play(params, jnp.int32(0), key, test_mode))(KEY)
    return mac, params, played.batch, played.memory


@pytest.fixture(scope="module")
def tested(hunters):
    return played(*hunters)


def test_searches_are_policies_over_available_actions_and_beliefs_are_probabilities(tested):
    mac, _, batch, memory = tested
    np.testing.assert_allclose(memory.belief.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(memory.prior.sum(-1), 1, rtol=1e-5)
    search = np.asarray(batch["search"], np.float32)
    acted = np.asarray(batch["filled"])[..., None] & np.asarray(batch.alive)
    np.testing.assert_allclose(search.sum(-1)[acted], 1, atol=0.01)
    assert not (search * ~np.asarray(batch.avail_actions))[acted].any(), "no unavailable action"
    reached = np.asarray(batch["reached"])
    caught = [(b, reached[b, t, i]) for b, t, i in np.argwhere(reached >= 0) if batch["filled"][b, t]]
    assert caught, "some prey was caught"
    assert not any(np.asarray(memory.belief)[b, :, g].any() for b, g in caught), "closed goals have probability 0"
    assert mac.next_prior(memory).shape == (4, 2, 3)


def test_what_is_kept_across_episodes_depends_on_the_goals():
    """Why they are chosen where they have places, otherwise how often goals of each type were; or as set."""
    hunt, strategies = make("stag_hunt"), make("prisoners_dilemma", rounds=4)
    assert HopMAC(hunt, {}).preferences is not None
    assert HopMAC(strategies, {}).preferences is None
    assert HopMAC(make("climbing"), {}).preferences is None, "actions have no places either"
    assert HopMAC(hunt, {"goal_memory": "types"}).preferences is None
    assert HopMAC(strategies, {"goal_memory": "preferences"}).preferences is not None


@pytest.mark.slow
def test_preferences_give_the_belief_of_a_board_and_are_kept_for_the_next(hunters):
    env, config = hunters
    mac, params, _batch, memory = played(env, config | {"goal_memory": "preferences", "preference_particles": 16})
    np.testing.assert_allclose(memory.joint.sum((-2, -1)), 1, rtol=1e-5)
    np.testing.assert_allclose(memory.belief, memory.joint.sum(-2), rtol=1e-5)
    assert not np.asarray(memory.belief)[~np.broadcast_to(memory.is_open[:, None], memory.belief.shape)].any()
    kept = mac.next_prior(memory)
    assert kept.shape == (4, 2, 16)
    np.testing.assert_allclose(kept, 0.95 * memory.joint.sum(-1) + 0.05 / 16, rtol=1e-5)
    # The next episode on the first board begins with what these preferences choose there.
    _state, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 4))
    begun = mac._begin(mac.init_memory(params, 4, prior=kept), seen)
    choice = mac._choices(seen, jnp.ones((4, 2, 4), bool))
    np.testing.assert_allclose(begun.belief, (kept[..., None] * choice).sum(-2), rtol=1e-5)
    later = mac._begin(begun._replace(t=jnp.int32(1), belief=begun.belief[..., ::-1]), seen)
    np.testing.assert_array_equal(later.belief, begun.belief[..., ::-1], err_msg="only before the first action")


@pytest.mark.parametrize("flag", ["intra_belief", "inter_belief"])
@pytest.mark.slow
def test_a_belief_that_is_switched_off_does_not_change(hunters, flag):
    env, config = hunters
    mac, _, _, memory = played(env, config | {flag: False})
    start = mac.init_memory(None, 4)
    if flag == "inter_belief":
        np.testing.assert_array_equal(mac.next_prior(memory), start.prior)
        return
    reached_nothing = np.asarray(memory.reached) < 0
    belief = np.asarray(memory.belief)[reached_nothing]
    only_closed = close(start.belief[reached_nothing], jnp.asarray(belief > 0), mac.models.type_of)
    np.testing.assert_allclose(belief, only_closed, rtol=1e-4, err_msg="only closed goals lost their probability")


@pytest.mark.slow
def test_an_agent_whose_goal_was_taken_is_remembered_for_the_goal_it_pursued():
    """A hunter walks to the stag, which another one catches: that it waits afterwards says nothing about its type."""
    env = make("stag_hunt", grid_size=3, hunters=2, hares=1, stags=1, episode_limit=6)
    right, wait = jax.nn.one_hot(4, 5), jax.nn.one_hot(0, 5)
    mac = mac_with(env, lambda goal: jnp.where(goal[..., 6:7] > 0, right, wait))
    both = hunt_of([[0, 0], [2, 0]], [[0, 2], [2, 2]])
    taken = both._replace(there=jnp.array([True, False]))
    memory, params = mac.init_memory(None, 1), {"model": None}
    np.testing.assert_allclose(memory.prior[0, 1], [0.475, 0.475, 0.05], rtol=1e-5)

    def step(memory, before, after, action):
        seen, shown = (one_row(env._timestep(state, jnp.zeros(2))) for state in (before, after))
        actions = jnp.array([[0, action]])
        return mac.observe(params, memory, seen, actions, one_row(after), shown, jnp.ones(1, bool))[0]

    memory = step(memory, both, taken, 4)
    towards = np.asarray(memory.pursued[0, 1])
    assert towards.argmax() == 1, "the step to the right leads to the stag"
    assert not memory.complete[0]
    waits = step(memory, taken, taken, 0)
    assert waits.belief[0, 1, 1] == 0, "closed goals have probability 0"
    np.testing.assert_allclose(waits.pursued[0, 1], towards, err_msg="later actions do not count")
    np.testing.assert_allclose(mac.next_prior(waits)[0, 1], 0.7 * memory.prior[0, 1] + 0.3 * towards, rtol=1e-5)


def test_without_goals_the_action_model_is_conditioned_on_observations_only(hunters):
    env, config = hunters
    mac = HopMAC(env, config | {"use_goals": False})
    params = jax.jit(mac.init_params)(KEY)
    memory = mac.init_memory(params, 1)
    state, seen = one_row(jax.jit(env.reset)(KEY))
    after, _ = jax.jit(mac.observe)(params, memory, seen, jnp.array([[1, 2]]), state, seen, jnp.ones(1, bool))
    np.testing.assert_allclose(after.belief, memory.belief, rtol=1e-5, err_msg="equal likelihoods change no belief")
    assert not mac.models.goal_features(seen.obs).any()


def beside_a_hare():
    env = make("stag_hunt", grid_size=3, hunters=2, hares=1, stags=1, episode_limit=6)
    state = hunt_of([[0, 1], [2, 0]], [[0, 0], [2, 2]])
    return env, state, env._timestep(state, jnp.zeros(2)), jnp.broadcast_to(jax.nn.one_hot(2, 3), (2, 3))


def test_without_planning_every_action_is_tried_once():
    env, state, shown, no_goal = beside_a_hare()
    q = planner(mac_with(env, stays, planning=False))(state, shown, no_goal)
    np.testing.assert_allclose(q, [0, 0, 0, 1, 0], atol=1e-6, err_msg="only the step to the left has a reward")


def test_a_reward_of_the_search_outweighs_a_value_network_that_overestimates():
    env, state, shown, no_goal = beside_a_hare()

    class Overestimates(FixedModels):
        def policy_value(self, agent, obs, others, avail_actions):
            prior = jnp.where(jnp.arange(5) == 3, 50.0, 0.0)
            return jnp.where(avail_actions, prior, -1e9), jnp.full(obs.shape[:-1], 1.05)

    mac = mac_with(env, stays, Overestimates, simulations=40)
    q = jnp.where(shown.avail_actions[0], planner(mac)(state, shown, no_goal), -jnp.inf)
    assert q.argmax() == 3


@pytest.fixture(scope="module")
def trained(hunters):
    return played(*hunters, test_mode=False)


def test_the_loss_by_hand(hunters, trained):
    (env, config), (mac, params, batch, _) = hunters, trained
    models, weights = mac.models, {"value_coef": 0.5, "model_coef": 2.0, "exclusive_coef": 0.3}
    learner = HopLearner(env.spec, mac, config | weights | {"gamma": 0.95, "bootstrap_at_limit": False})
    loss, metrics = jax.jit(learner.loss)(params, {}, batch, jnp.int32(0), KEY)
    reached = batch["reached"][:, :-1].astype(jnp.int32)
    next_goal = label(reached, batch.filled[:, :-1])
    other = (np.asarray(reached) + np.asarray(jax.random.randint(KEY, reached.shape, 1, models.n_goals))) % (
        models.n_goals
    )
    features, ways = np.asarray(models.goal_features(batch.obs)), np.asarray(env.goal_features(batch.obs))
    obs, avail, alive, actions, search, reward, reached, filled = (
        np.asarray(x)
        for x in (
            batch.obs, batch.avail_actions, batch.alive, batch.actions, batch["search"].astype(jnp.float32),
            batch.reward, reached, batch.filled,
        )
    )  # fmt: skip

    at = [(b, t, i) for b, t, i in np.argwhere(alive[:, :-1]) if filled[b, t]]
    index = tuple(np.transpose(at))

    def probabilities(goals):
        chosen = np.stack([features[p][goals[p]] for p in at])
        logits = np.asarray(params["model"](*(jnp.asarray(x) for x in (obs[index], chosen, ways[index]))))
        return np.asarray(jax.nn.softmax(np.where(avail[index], logits, -1e9), -1))[np.arange(len(at)), actions[index]]

    of_goals = np.stack([probabilities(np.full(next_goal.shape, g)) for g in range(models.n_goals)], -1)
    smoothed = np.zeros((*next_goal.shape, models.n_goals), np.float32)
    smoothed[index] = 0.95 * of_goals + 0.05 / avail[index].sum(-1, keepdims=True)
    pursued = np.asarray(
        pursued_in_hindsight(
            next_goal, jnp.asarray(filled[:, :-1, None] * alive[:, :-1]), jnp.log(jnp.asarray(smoothed) + 1e-30),
            batch["is_open"][:, :-1], mac.first_prior, models.type_of,
        )
    )  # fmt: skip
    assert (np.asarray(next_goal)[index] < 0).any(), "some hunter caught nothing"
    model = -(pursued[index] * np.log(of_goals)).sum(-1)
    reached_now = reached[index] >= 0
    assert (other != reached)[reached >= 0].all()
    exclusive = -np.log(1 - 0.999 * probabilities(other)[reached_now])
    sample = np.asarray(batch["sample"])
    of_other = np.stack([features[b, t, i][sample[b, t, i, 1 - i]] for b, t, i in at])
    own_inputs = np.concatenate([obs[index], of_other, ways[index].reshape(len(at), -1)], -1)
    out = np.asarray(params["agent"](jnp.asarray(own_inputs)))
    log_pi = np.asarray(jax.nn.log_softmax(np.where(avail[index], out[:, :-1], -1e9), -1))
    policy = -(search[index] * np.where(avail[index], log_pi, 0.0)).sum(-1)
    returns = []
    for b, t, i in at:
        weight, total = 1.0, 0.0
        for u in range(t, int(filled[b].sum())):
            if not alive[b, u, i]:
                break
            total += weight * reward[b, u, i]
            weight *= 0.95
        returns.append(total)
    value = (out[:, -1] - returns) ** 2
    for name, terms, rtol in (
        ("model_loss", model, 1e-4), ("exclusive_loss", exclusive, 1e-3), ("policy_loss", policy, 1e-3),
        ("value_loss", value, 1e-4),
    ):  # fmt: skip
        np.testing.assert_allclose(metrics[name], np.mean(terms), rtol=rtol, err_msg=name)
    everything = np.mean(policy) + 0.5 * np.mean(value) + 2.0 * (np.mean(model) + 0.3 * np.mean(exclusive))
    np.testing.assert_allclose(loss, everything, rtol=1e-3)


def test_without_goals_no_action_excludes_a_goal(hunters, trained):
    """Then the action model cannot tell goals apart."""
    (env, config), (_, params, batch, _) = hunters, trained
    mac = HopMAC(env, config | {"use_goals": False})

    def loss(coefficient):
        learner = HopLearner(env.spec, mac, {"exclusive_coef": coefficient})
        return jax.jit(learner.loss)(params, {}, batch, jnp.int32(0), KEY)[0]

    assert loss(0.0) == loss(5.0)


def test_a_goal_type_without_goals_has_probability_0():
    env = make("stag_hunt", grid_size=4, hunters=2, hares=0, stags=1, episode_limit=6)
    mac = HopMAC(env, {"goal_memory": "types"})
    memory = mac.init_memory(None, 1)
    np.testing.assert_allclose(memory.prior[0, 0], [0.0, 0.95, 0.05], rtol=1e-5)
    np.testing.assert_allclose(memory.belief[0, 0], [0.95, 0.05], rtol=1e-5)
    state, seen = one_row(jax.jit(env.reset)(KEY))
    params = jax.jit(mac.init_params)(KEY)
    after, _ = jax.jit(mac.observe)(params, memory, seen, jnp.array([[0, 0]]), state, seen, jnp.ones(1, bool))
    assert after.complete[0], "a type without goals does not make the set of open types incomplete"
    assert mac.next_prior(after)[0, 1, 0] == 0


class KnownStrategies(FixedModels):
    """Co-players follow the table of the strategy that is their goal: signs after CC, CD, DC, DD, and at first."""

    def co_player_logits(self, model, obs, goal, avail_actions):
        own, other = obs[..., 1:3], obs[..., 3:5]
        place = jnp.where(own.sum(-1) > 0, 2 * own[..., 1] + other[..., 1], 4).astype(int)
        defects = jnp.take_along_axis(goal, place[..., None], -1) > 0
        return 1e3 * jnp.concatenate([~defects, defects], -1)


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(("strategy", "plan"), [("tit_for_tat", [0, 0, 0, 1]), ("always_defect", [1, 1, 1, 1])])
def test_who_knows_the_strategy_of_its_partner_plays_the_best_response(strategy, plan, seat):
    """A prisoner's dilemma of four rounds. With tit-for-tat: cooperate, and defect in the last round only.

    That earns 4 + 4 + 4 + 5 = 17, and defecting also in the first round 5 + 0 + 4 + 5 = 14.
    """
    env = make("matrix_game", payoffs=[[[4, 0], [5, 1]], [[4, 5], [0, 1]]], rounds=4)
    goal = env.goal_names.index(strategy)
    mac = mac_with(env, None, KnownStrategies, gamma=0.999, search_depth=4, goal_draws=1)
    mac.oracle = lambda obs: jnp.int32(goal)
    act = jax.jit(
        lambda seen, state, memory: mac.select_actions(
            {"agent": None, "model": None}, one_row(seen), memory, jnp.int32(0), KEY, True,
            jnp.array([[seat]]), one_row(state),
        )
    )  # fmt: skip
    state, seen = env.reset(KEY)
    memory, taken, other = mac.init_memory({}, 1), [], {"tit_for_tat": 0, "always_defect": 1}[strategy]
    for t in range(4):
        actions, _ = act(seen, state, memory._replace(t=jnp.int32(t)))
        own = int(actions[0, 0])
        taken.append(own)
        state, seen = env.step(state, jnp.array([own, other] if seat == 0 else [other, own]), KEY)
        other = own if strategy == "tit_for_tat" else 1
    assert taken == plan


def test_a_scripted_policy_acts_until_planning_takes_over():
    """By time: until so many steps of training, never in tests. By confidence: until all others' goals are sure."""
    belief = jnp.array([[[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]])
    alive, seats = jnp.ones((2, 3), bool), jnp.zeros((2, 1), int)
    by_time = HandOverSettings(rule_policy="random", switch_after=100)
    for t_env, test_mode, expected in ((99, False, False), (100, False, True), (0, True, True)):
        assert plans_now(by_time, belief, alive, seats, jnp.int32(t_env), test_mode).tolist() == [[expected]] * 2
    sure = HandOverSettings(rule_policy="random", switch_when="confidence", switch_confidence=0.8)
    assert plans_now(sure, belief, alive, seats, jnp.int32(0), True).tolist() == [[False], [True]]
    assert plans_now(sure, belief, alive.at[0, 2].set(False), seats, jnp.int32(0), True).all(), "who left is no matter"
    assert not plans_now(sure, belief, alive, seats + 1, jnp.int32(0), True).any(), "the agent itself does not count"


def test_the_rule_is_asked_with_the_agents_own_observation_and_seat(hunters):
    """The first number of an observation is the agent's own row on the board."""
    env, _ = hunters
    state, seen = env.reset(KEY)
    mac = mac_with(env, stays, train_simulations=2, train_goal_draws=1, search_depth=1, switch_after=10)
    mac.rule = lambda obs, avail_actions, seat, key: 100 * seat + jnp.round(100 * obs[0]).astype(int)
    memory, seats = mac.init_memory({}, 1), jnp.array([[1, 0]])

    @jax.jit
    def act(t_env):
        given = ({"agent": None, "model": None}, one_row(seen), memory, t_env, KEY, False, seats, one_row(state))
        return mac.select_actions(*given)[0]

    rows = jnp.round(100 * seen.obs[:, 0]).astype(int)
    assert act(jnp.int32(9)).tolist() == [[100 + int(rows[1]), int(rows[0])]]
    assert (act(jnp.int32(10)) < env.spec.n_actions).all(), "planning has taken over"

"""HOP: best replies that exhaustive search confirms, labels in hindsight, and what goes with a flag."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.controllers import HopMAC
from omg.envs import make
from omg.envs.stag_hunt import Hunt
from omg.learners.hop_learner import HopLearner, discounted, label
from omg.runners import VectorRunner

KEY = jax.random.key(0)
GAMMA = 0.9
STATES = {
    # The better reward now leads where there is little to have.
    "start": {"payoffs": [[[3, 0], [1, 1]], [[0, 0], [0, 0]]], "next": [["poor", "poor"], ["rich", "poor"]]},
    "poor": {"payoffs": [[[0, 1], [1, 0]], [[0, 0], [0, 0]]]},
    "rich": {"payoffs": [[[9, 0], [0, 4]], [[0, 0], [0, 0]]]},
}


class Certain(HopMAC):
    """Co-players do with certainty what `does` says of their goal; the networks have nothing to say."""

    def __init__(self, env, does, **config):
        super().__init__(env, {"simulations": 300, "goal_draws": 2, "hop_gamma": GAMMA, **config})
        self.does = does

    def co_players(self, model, obs, goal, avail_actions):
        return jnp.where(avail_actions, 1e3 * self.does(goal), -1e9)

    def policy_value(self, agent, obs, others, avail_actions):
        return jnp.where(avail_actions, 0.0, -1e9), jnp.zeros(obs.shape[:-1])


def exhaustive(env, world, shown, other, depth):
    """The value of every action of the first agent by trying everything; the other does the same at every step."""
    step = jax.jit(env.step)

    def values(world, avail, t):
        found = np.full(env.spec.n_actions, -np.inf)
        for action in np.flatnonzero(np.asarray(avail[0])):
            after, seen = step(world, jnp.array([action, other]), KEY)
            goes_on = bool(seen.alive[0]) and not bool(seen.terminated) and t + 1 < depth
            ahead = values(after, seen.avail_actions, t + 1).max() if goes_on else 0.0
            found[action] = float(seen.reward[0]) + GAMMA * ahead
        return found

    return values(world, shown.avail_actions, 0)


def planner(mac):
    @jax.jit
    def plan(world, shown, belief):
        one = jax.tree.map(lambda x: x[None], (world, shown))
        memory = mac.init_memory(None, 1)._replace(belief=belief[None])
        networks = {"agent": None, "model": None}
        return mac.plan(networks, one[1], memory, jnp.zeros((1, 1), int), one[0], KEY, True)[0, 0]

    return plan


def test_the_best_reply_in_a_game_of_three_states():
    env = make("matrix_game", states=STATES)
    plan = planner(Certain(env, lambda goal: goal[..., :2], simulations=100))
    world, shown = env.reset(KEY)
    for other in (0, 1):
        q = plan(world, shown, jnp.broadcast_to(jax.nn.one_hot(other, 3), (2, 3)))
        wanted = exhaustive(env, world, shown, other, 2)
        np.testing.assert_allclose(q, wanted, atol=0.5)
        assert q.argmax() == wanted.argmax()
    assert wanted[0] < 3, "not what pays at once"


def test_the_stag_if_somebody_waits_there_and_the_hare_if_not():
    env = make("stag_hunt", grid_size=3, hunters=2, hares=1, stags=1, episode_limit=6)
    stays = lambda goal: jnp.broadcast_to(jax.nn.one_hot(0, 5), (*goal.shape[:-1], 5))  # noqa: E731
    # Widely enough that the larger reward behind the smaller one is found without a value that points there.
    plan = planner(Certain(env, stays, simulations=300, c_puct=5.0))
    aimless = jnp.broadcast_to(jax.nn.one_hot(2, 3), (2, 3))
    for other, hunted in (([2, 2], 1), ([2, 0], 0)):
        nothing = jnp.full(2, -1)
        world = Hunt(
            jnp.array([[0, 1], other]), jnp.array([[0, 0], [2, 2]]), jnp.ones(2, bool), jnp.ones(2, bool), nothing,
            jnp.int32(0),
        )  # fmt: skip
        shown = env._show(world, jnp.zeros(2))
        while shown.alive[0]:
            q = jnp.where(shown.avail_actions[0], plan(world, shown, aimless), -jnp.inf)
            wanted = exhaustive(env, world, shown, 0, 4)
            assert wanted[int(q.argmax())] == pytest.approx(wanted.max()), "as good as anything there is"
            world, shown = env.step(world, jnp.array([q.argmax(), 0]), KEY)
        assert env.goals(world).reached[0] == hunted


def test_labels_are_what_was_reached_next():
    reached = jnp.array([[[-1, -1], [2, -1], [-1, -1], [-1, 0], [1, 1]]])
    filled = jnp.array([[1.0, 1, 1, 1, 0]])
    wanted = label(reached, filled, 9)
    assert wanted[0, :4, 0].tolist() == [2, 2, 9, 9], "what lies past the end is nobody's goal"
    assert wanted[0, :4, 1].tolist() == [0, 0, 0, 0]


def test_returns_end_where_an_agent_leaves():
    reward = jnp.array([[[1.0, 1], [1, 1], [4, 4]]])
    alive_next = jnp.array([[[1, 1], [0, 1], [0, 0]]], bool)
    np.testing.assert_allclose(discounted(reward, alive_next, 0.5)[0, :, 0], [1.5, 1, 4])
    np.testing.assert_allclose(discounted(reward, alive_next, 0.5)[0, :, 1], [2.5, 3, 4])


@pytest.fixture(scope="module")
def hunters():
    env = make("stag_hunt", grid_size=4, hunters=2, hares=2, stags=1, episode_limit=6)
    return env, {"simulations": 8, "goal_draws": 2, "train_simulations": 4, "train_goal_draws": 1, "hop_hidden_dim": 8}


def played(env, config, test_mode=True):
    mac = HopMAC(env, config)
    scheme, groups = make_scheme(env.spec)
    networks = mac.init_networks(KEY)
    runner = VectorRunner(env, mac, scheme | mac.scheme, groups, 4)
    batch, _, memory = jax.jit(lambda key: runner.play(networks, jnp.int32(0), key, test_mode))(KEY)
    return mac, networks, batch, memory


def test_everybody_plans_and_beliefs_stay_chances(hunters):
    env, config = hunters
    mac, _, batch, memory = played(env, config)
    np.testing.assert_allclose(memory.belief.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(memory.prior.sum(-1), 1, rtol=1e-5)
    search = np.asarray(batch["search"], np.float32)
    playing = np.asarray(batch["filled"])[..., None] & np.asarray(batch.alive)
    np.testing.assert_allclose(search.sum(-1)[playing], 1, atol=0.01)
    assert not (search * ~np.asarray(batch.avail_actions))[playing].any(), "nothing that cannot be done"
    taken = np.asarray(batch["reached"])
    caught = [(b, g) for b, t, i in np.argwhere(taken >= 0) if batch["filled"][b, t] for g in [taken[b, t, i]]]
    assert caught, "somebody caught something"
    assert not any(np.asarray(memory.belief)[b, :, g].any() for b, g in caught), "nobody is after what is gone"
    assert mac.next_prior(memory).shape == (4, 2, 3)


@pytest.mark.parametrize(
    ("flag", "same"),
    [("intra_belief", "belief"), ("inter_belief", "prior")],
)
def test_without_a_belief_nothing_moves_it(hunters, flag, same):
    env, config = hunters
    mac, _, _, memory = played(env, config | {flag: False})
    start = mac.init_memory(None, 4)
    if same == "prior":
        np.testing.assert_array_equal(mac.next_prior(memory), start.prior)
    else:
        untouched = np.asarray(memory.reached) < 0
        some_left = np.asarray(memory.belief)[untouched]
        # Only goals that are gone have lost their part.
        ratio = some_left / np.asarray(start.belief)[untouched]
        assert all(np.allclose(row[row > 0], row[row > 0][0], rtol=1e-4) for row in ratio)


def test_who_came_too_late_is_remembered_for_what_it_was_after():
    """A hunter walks to the stag, and it is gone: that it then waits says nothing about the next episode."""
    env = make("stag_hunt", grid_size=3, hunters=2, hares=1, stags=1, episode_limit=6)
    mac = Certain(env, lambda goal: jnp.where(goal[..., 6:7] > 0, jax.nn.one_hot(4, 5), jax.nn.one_hot(0, 5)))
    world = Hunt(
        jnp.array([[0, 0], [2, 0]]), jnp.array([[0, 2], [2, 2]]), jnp.ones(2, bool), jnp.ones(2, bool),
        jnp.full(2, -1), jnp.int32(0),
    )  # fmt: skip
    gone = world._replace(there=jnp.array([True, False]))
    memory, networks = mac.init_memory(None, 1), {"model": None}
    np.testing.assert_allclose(memory.prior[0, 1], [0.475, 0.475, 0.05], rtol=1e-5)

    def seen(world):
        return jax.tree.map(lambda x: x[None], env._show(world, jnp.zeros(2)))

    def step(memory, before, after, action):
        one = jax.tree.map(lambda x: x[None], after)
        moves = jnp.array([[0, action]])
        return mac.observe(networks, memory, seen(before), moves, one, seen(after), jnp.ones(1, bool))[0]

    memory = step(memory, world, gone, 4)
    towards = np.asarray(memory.pursued[0, 1])
    assert towards.argmax() == 1, "to the right is where the stag was"
    assert not memory.complete[0]
    waits = step(memory, gone, gone, 0)
    assert np.asarray(waits.belief[0, 1])[1] == 0, "nobody is after what is gone"
    np.testing.assert_allclose(waits.pursued[0, 1], towards, err_msg="what came after does not count")
    np.testing.assert_allclose(mac.next_prior(waits)[0, 1], 0.7 * memory.prior[0, 1] + 0.3 * towards, rtol=1e-5)


def test_without_goals_co_players_are_told_by_what_they_see_alone(hunters):
    env, config = hunters
    mac = HopMAC(env, config | {"use_goals": False})
    networks, (_, shown) = jax.jit(mac.init_networks)(KEY), env.reset(KEY)
    memory = mac.init_memory(networks, 1)
    world, seen = (jax.tree.map(lambda x: x[None], x) for x in env.reset(KEY))
    after, _ = jax.jit(mac.observe)(networks, memory, seen, jnp.array([[1, 2]]), world, seen, jnp.ones(1, bool))
    np.testing.assert_allclose(after.belief, memory.belief, rtol=1e-5, err_msg="what fits all goals alike says nothing")
    assert not mac.goal_features(shown.obs).any()


def beside_a_hare():
    env = make("stag_hunt", grid_size=3, hunters=2, hares=1, stags=1, episode_limit=6)
    world = Hunt(
        jnp.array([[0, 1], [2, 0]]), jnp.array([[0, 0], [2, 2]]), jnp.ones(2, bool), jnp.ones(2, bool),
        jnp.full(2, -1), jnp.int32(0),
    )  # fmt: skip
    return env, world, env._show(world, jnp.zeros(2)), jnp.broadcast_to(jax.nn.one_hot(2, 3), (2, 3))


def test_without_planning_every_action_is_looked_at_once():
    env, world, shown, aimless = beside_a_hare()
    mac = Certain(env, lambda goal: jnp.zeros((*goal.shape[:-1], 5)).at[..., 0].set(1), planning=False)
    q = planner(mac)(world, shown, aimless)
    np.testing.assert_allclose(q, [0, 0, 0, 1, 0], atol=1e-6, err_msg="only the step to the left brings something")


def test_a_value_that_promises_too_much_does_not_win_over_what_was_seen():
    env, world, shown, aimless = beside_a_hare()

    class Boastful(Certain):
        def policy_value(self, agent, obs, others, avail_actions):
            sure = jnp.where(jnp.arange(5) == 3, 50.0, 0.0)
            return jnp.where(avail_actions, sure, -1e9), jnp.full(obs.shape[:-1], 1.05)

    mac = Boastful(env, lambda goal: jnp.zeros((*goal.shape[:-1], 5)).at[..., 0].set(1), simulations=40)
    q = jnp.where(shown.avail_actions[0], planner(mac)(world, shown, aimless), -jnp.inf)
    assert q.argmax() == 3


def test_the_loss_by_hand(hunters):
    env, config = hunters
    mac, networks, batch, _ = played(env, config, test_mode=False)
    weights = {"value_coef": 0.5, "model_coef": 2.0, "exclusive_coef": 0.3}
    learner = HopLearner(env.spec, mac, config | {"mac": "hop_mac", **weights})
    whole, metrics = learner.loss(networks, {}, batch, jnp.int32(0), KEY)
    steps, n = np.asarray(batch.filled.sum(1), int), 2
    wanted = np.asarray(label(batch["reached"][:, :-1].astype(jnp.int32), batch.filled[:, :-1], mac.n_goals - 1))
    reached = np.asarray(batch["reached"][:, :-1].astype(jnp.int32))
    other = (reached + np.asarray(jax.random.randint(KEY, reached.shape, 1, mac.n_goals))) % mac.n_goals
    model, exclusive, policy, value = [], [], [], []
    for b in range(4):
        for t in range(steps[b]):
            for i in range(n):
                if not batch.alive[b, t, i]:
                    continue
                obs, avail = batch.obs[b, t, i], batch.avail_actions[b, t, i]
                mine = mac.goal_features(obs)
                logits = networks["model"](obs, mine[wanted[b, t, i]], env.goal_features(obs))
                log_pi = jax.nn.log_softmax(jnp.where(avail, logits, -1e9))
                model.append(-float(log_pi[int(batch.actions[b, t, i])]))
                if reached[b, t, i] >= 0:
                    assert other[b, t, i] != reached[b, t, i]
                    logits = networks["model"](obs, mine[other[b, t, i]], env.goal_features(obs))
                    chances = jax.nn.softmax(jnp.where(avail, logits, -1e9))
                    exclusive.append(-np.log(1 - 0.999 * float(chances[int(batch.actions[b, t, i])])))
                ways = env.goal_features(obs).ravel()
                out = networks["agent"](jnp.concatenate([obs, mine[wanted[b, t, 1 - i]], ways]))
                log_own = jax.nn.log_softmax(jnp.where(avail, out[:-1], -1e9))
                policy.append(
                    -sum(float(p) * float(log_own[a]) for a, p in enumerate(batch["search"][b, t, i]) if avail[a])
                )
                ahead, total = 1.0, 0.0
                for u in range(t, steps[b]):
                    if not batch.alive[b, u, i]:
                        break
                    total += ahead * float(batch.reward[b, u, i])
                    ahead *= 0.95
                value.append((float(out[-1]) - total) ** 2)
    np.testing.assert_allclose(metrics["model_loss"], np.mean(model), rtol=1e-4)
    np.testing.assert_allclose(metrics["exclusive_loss"], np.mean(exclusive), rtol=1e-3)
    np.testing.assert_allclose(metrics["policy_loss"], np.mean(policy), rtol=1e-3)
    np.testing.assert_allclose(metrics["value_loss"], np.mean(value), rtol=1e-4)
    everything = np.mean(policy) + 0.5 * np.mean(value) + 2.0 * (np.mean(model) + 0.3 * np.mean(exclusive))
    np.testing.assert_allclose(whole, everything, rtol=1e-3)


def test_without_goals_nothing_is_excluded(hunters):
    """Then what reached something and what reached something else look alike to the model."""
    env, config = hunters
    config = config | {"use_goals": False, "mac": "hop_mac"}
    mac, networks, batch, _ = played(env, config, test_mode=False)
    losses = [
        HopLearner(env.spec, mac, config | {"exclusive_coef": c}).loss(networks, {}, batch, jnp.int32(0), KEY)[0]
        for c in (0.0, 5.0)
    ]
    assert losses[0] == losses[1]


def test_a_kind_that_is_not_there_is_nobodys_aim():
    env = make("stag_hunt", grid_size=4, hunters=2, hares=0, stags=1, episode_limit=6)
    mac = HopMAC(env, {})
    memory = mac.init_memory(None, 1)
    np.testing.assert_allclose(memory.prior[0, 0], [0.0, 0.95, 0.05], rtol=1e-5)
    np.testing.assert_allclose(memory.belief[0, 0], [0.95, 0.05], rtol=1e-5)
    world, seen = (jax.tree.map(lambda x: x[None], x) for x in env.reset(KEY))
    networks = mac.init_networks(KEY)
    after, _ = mac.observe(networks, memory, seen, jnp.array([[0, 0]]), world, seen, jnp.ones(1, bool))
    assert after.complete[0], "what never was there cannot be gone"
    assert mac.next_prior(after)[0, 1, 0] == 0

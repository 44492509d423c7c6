"""HOP while it plays: what each co-player is after, and a search for the best reply to it.

Beliefs over goals follow what co-players do (`observe`). To decide, goals are drawn from the beliefs; for each draw a
tree is searched in the real world model, in which co-players act by their goal-conditioned model; values are averaged
over the draws, and the action is drawn from a Boltzmann distribution of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.action_selectors import UNAVAILABLE, ActionSelector, SelectorSettings
from omg.components.beliefs import across, spread, within
from omg.components.episode_buffer import Field, Scheme
from omg.components.linear import MLP
from omg.components.tree_search import Expansion, noisy, search
from omg.controllers.hop_settings import HopSettings
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.modules.co_player import CoPlayerModel
from omg.modules.goal_sets import GoalSpace, LearnedGoals, Moment, WorldGoals
from omg.utils.rl_utils import pick
from omg.utils.settings import fill

NOTHING = 0.05
"""How likely a stranger is after nothing in particular."""
OPEN_MINDED = 0.25
"""The part of a search's prior that is spread evenly over what can be done."""


class HopMemory(NamedTuple):
    """What is believed of everybody in every world, and what this episode has shown so far."""

    t: Int[Array, ""]
    prior: Float[Array, "batch agent kind"]
    """Over kinds of goals, at the start of the episode."""
    belief: Float[Array, "batch agent goal"]
    reached: Int[Array, "batch agent"]
    """The kind of the last goal that each reached; -1: none yet."""
    pursued: Float[Array, "batch agent kind"]
    """Of whom nothing is reached: what it was thought to be after, as long as there were goals of every kind."""
    complete: Bool[Array, " batch"]
    search: Float[Array, "batch agent action"]
    """What the last search came to, in the seats that searched."""
    window: Float[Array, "batch agent window obs"]
    """What everybody saw in the last steps, as far back as goals are told by it."""


class Node(NamedTuple):
    """A place in the tree: the world there, and what everybody is after."""

    world: Any
    obs: Float[Array, "row agent obs"]
    avail_actions: Bool[Array, "row agent action"]
    goals: Int[Array, "row agent"]
    t: Int[Array, " row"]


class HopMAC:
    """Plans for the seats it is given. The last goal of every world is to be after nothing in particular."""

    Settings = HopSettings
    plans = True
    prior_size = 0

    def __init__(
        self,
        env: MultiAgentEnv,
        config: Mapping[str, Any],
        space: GoalSpace | None = None,
        told: Callable[[Array], Array] | None = None,
    ):
        self.env, self.spec, self.space = env, env.spec, space
        # From what somebody sees to what it is after: a yardstick that need not infer.
        self.told = told
        self.settings = fill(HopSettings, config)
        self.selector = ActionSelector(fill(SelectorSettings, config))
        # Whether an agent goes on earning with the team after its own fall.
        self.shared = env.spec.kind == "cooperative"
        self.goals: Any = WorldGoals(env) if space is None else LearnedGoals(env, space, self.settings.goal_window)
        self.n_goals = self.goals.n + 1
        self.n_kinds = max(self.goals.kinds, default=-1) + 2
        self.kind_of = jnp.array([*self.goals.kinds, self.n_kinds - 1])
        self.present = self._kinds(jnp.ones(self.n_goals)) > 0
        self.goal_size = self.goals.size + 1

    # --- networks

    def init_networks(self, key: Array) -> dict[str, Any]:
        k_agent, k_model = jax.random.split(key)
        s, hidden = self.spec, self.settings.hop_hidden_dim
        own = s.obs_size + self.env.n_goals * self.env.goal_size + (s.n_agents - 1) * self.goal_size
        return {
            "agent": MLP((own, hidden, hidden, s.n_actions + 1), k_agent),
            "model": CoPlayerModel(s.obs_size, self.goal_size, self.env.goal_size, hidden, s.n_actions, k_model),
        }

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """Every goal as the observing agent sees it; of nothing in particular only that it is that."""
        known = self.goals.features(obs)
        known = jnp.pad(known, [(0, 0)] * (known.ndim - 2) + [(0, 1), (0, 1)]).at[..., -1, -1].set(1.0)
        return known if self.settings.use_goals else jnp.zeros_like(known)

    def goal(self, obs: Float[Array, "*rows obs"], which: Int[Array, "*rows"]) -> Float[Array, "*rows feature"]:
        """One goal as the observing agent sees it."""
        return jnp.take_along_axis(self.goal_features(obs), which[..., None, None], -2)[..., 0, :]

    def co_players(
        self, model: CoPlayerModel, obs: Array, goal: Array, avail_actions: Array
    ) -> Float[Array, "*rows action"]:
        """π_ω(a | s, g), as logits."""
        return jnp.where(avail_actions, model(obs, goal, self._ways(obs)), UNAVAILABLE)

    def policy_value(self, agent: MLP, obs: Array, others: Array, avail_actions: Array) -> tuple[Array, Array]:
        """What to do and what will come of it; `others` are the goals of the others as this agent sees them."""
        parts = [obs, *(x.reshape(*x.shape[:-2], -1) for x in (others, self._ways(obs)))]
        out = agent(jnp.concatenate(parts, -1))
        return jnp.where(avail_actions, out[..., :-1], UNAVAILABLE), out[..., -1]

    def _ways(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal way"]:
        """The way to whatever the world calls a goal is given, so that it need not be learned from coordinates."""
        return self.env.goal_features(obs) if self.env.n_goals else jnp.zeros((*obs.shape[:-1], 0, 0))

    def goals_of_others(
        self, obs: Float[Array, "*rows obs"], goals: Int[Array, "*rows agent"], seat: Int[Array, "*rows"]
    ) -> Float[Array, "*rows other feature"]:
        """In order of their seats after this agent's."""
        n = self.spec.n_agents
        others = (seat[..., None] + jnp.arange(1, n)) % n
        wanted = jnp.take_along_axis(goals, others, -1)
        return jnp.take_along_axis(self.goal_features(obs), wanted[..., None], -2)

    # --- beliefs

    def init_memory(self, agent: Any, batch: int, seats: int | None = None, prior: Array | None = None) -> HopMemory:
        n = self.spec.n_agents
        if prior is None:
            each = (self.present * (1 - NOTHING) / jnp.maximum(self.present.sum() - 1, 1)).at[-1].set(NOTHING)
            prior = jnp.broadcast_to(each / each.sum(), (batch, n, self.n_kinds))
        belief = spread(prior, self.kind_of, jnp.ones((batch, n, self.n_goals), bool))
        return HopMemory(
            jnp.int32(0), prior, belief, jnp.full((batch, n), -1, jnp.int32), prior, jnp.ones(batch, bool),
            search=jnp.zeros((batch, n, self.spec.n_actions)),
            window=jnp.zeros((batch, n, self.goals.window, self.spec.obs_size)),
        )  # fmt: skip

    def observe(
        self, agent: Any, memory: HopMemory, seen: Timestep, actions: Array, world: Any, shown: Timestep,
        running: Bool[Array, " batch"],
    ) -> tuple[HopMemory, dict[str, Array]]:  # fmt: skip
        """After a step: everybody's action speaks for the goals that would explain it. Also what is worth keeping."""
        s, obs = self.settings, seen.obs.astype(jnp.float32)
        near = seen.alive & self._near(obs)
        chances = self._chances(agent["model"], obs, seen.avail_actions, near)
        expected = (memory.belief[..., None] * chances).sum(-2)
        # A little for anything that could be done: no single action rules a goal out.
        chances = (1 - s.surprise) * chances + s.surprise * _any(seen.avail_actions)[:, :, None]
        likelihood = pick(chances, jnp.broadcast_to(actions[..., None], chances.shape[:-1]))
        likelihood = jnp.where((near & s.intra_belief)[..., None], likelihood, 1.0)

        window = memory.window
        if self.goals.window:
            window = jnp.concatenate([window[:, :, 1:], obs[:, :, None]], 2)
        still_open = self._open(world, actions.shape)
        reached = self.goals.reached(Moment(seen, world, shown, window, memory.t))
        belief = within(memory.belief, likelihood, still_open)
        # Whose goal is gone with being reached is after something new; one that stays can be reached again.
        taken = ~jnp.take_along_axis(still_open, jnp.maximum(reached, 0)[..., None], -1)[..., 0]
        belief = jnp.where(((reached >= 0) & taken)[..., None], spread(memory.prior, self.kind_of, still_open), belief)
        kind = jnp.where(reached >= 0, self.kind_of[reached], memory.reached)
        # Before anything is gone by this step.
        posterior = within(memory.belief, likelihood, jnp.ones_like(still_open))
        noted = {
            "search": memory.search,
            "reached": reached,
            "belief": memory.belief,
            "posterior": posterior,
            "predicted": jnp.where(seen.avail_actions, expected, -1.0).argmax(-1),
            "inferred": near,
        }
        # Where the game is over nothing is learned from what follows.
        on = running[:, None]
        memory = memory._replace(
            t=memory.t + 1,
            belief=jnp.where(on[..., None], belief, memory.belief),
            reached=jnp.where(on, kind, memory.reached),
            pursued=jnp.where((running & memory.complete)[:, None, None], self._kinds(posterior), memory.pursued),
            complete=memory.complete & ((self._kinds(still_open[:, 0]) > 0) | ~self.present).all(-1),
            window=window,
        )
        return memory, noted

    def _near(self, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch agent"]:
        """Who is near enough to some goal for its actions to be worth interpreting."""
        gate = self.settings.gate_distance
        if gate is None or not self.goals.n:
            return jnp.ones(obs.shape[:2], bool)
        return self.goals.distance(obs).min(-1) <= gate

    def _chances(
        self, model: CoPlayerModel, obs: Array, avail_actions: Array, near: Array
    ) -> Float[Array, "batch agent goal action"]:
        """π_ω of everybody for every goal. Nothing is computed while nobody is near anything."""

        def compute(_: None) -> Array:
            each = jnp.broadcast_to(obs[:, :, None], (*obs.shape[:2], self.n_goals, obs.shape[-1]))
            avail = jnp.broadcast_to(avail_actions[:, :, None], (*each.shape[:-1], avail_actions.shape[-1]))
            return jax.nn.softmax(self.co_players(model, each, self.goal_features(obs), avail), -1)

        if self.settings.gate_distance is None:
            return compute(None)
        shape = (*obs.shape[:2], self.n_goals, avail_actions.shape[-1])
        anything = jnp.broadcast_to(_any(avail_actions)[:, :, None], shape)
        return jax.lax.cond(near.any(), compute, lambda _: anything, None)

    def _open(self, world: Any, shape: tuple[int, ...]) -> Bool[Array, "batch agent goal"]:
        """To be after nothing in particular is always possible."""
        always = jnp.pad(self.goals.open(world), ((0, 0), (0, 1)), constant_values=True)
        return jnp.broadcast_to(always[:, None], (*shape, self.n_goals))

    def next_prior(self, memory: HopMemory) -> Float[Array, "batch agent kind"]:
        """What an episode leaves for the next one with the same co-players."""
        if not self.settings.inter_belief:
            return memory.prior
        seen = jnp.arange(self.n_kinds) == memory.reached[..., None]
        pursued = jnp.where(memory.reached[..., None] >= 0, seen, memory.pursued)
        return across(memory.prior, pursued, self.settings.hop_alpha)

    def _kinds(self, of_goals: Array) -> Float[Array, "*rows kind"]:
        return of_goals @ (self.kind_of[:, None] == jnp.arange(self.n_kinds)).astype(jnp.float32)

    @property
    def scheme(self) -> Scheme:
        """What an episode holds besides."""
        return {
            "search": Field((self.spec.n_actions,), "float16", "agents"),
            "reached": Field((), "int16", "agents"),
        }

    # --- planning

    def select_actions(
        self, agent: Any, seen: Timestep, memory: HopMemory, t_env: Array, key: Array, test_mode: bool,
        seats: Int[Array, "batch seat"] | None = None, world: Any = None,
    ) -> tuple[Int[Array, "batch seat"], HopMemory]:  # fmt: skip
        """Everybody is seen; the decision is for `seats` (all, where none are named)."""
        batch, n = seen.obs.shape[:2]
        if seats is None:
            seats = jnp.broadcast_to(jnp.arange(n), (batch, n))
        k_plan, k_act = jax.random.split(key)
        q = self.plan(agent, seen, memory, seats, world, k_plan, test_mode)
        avail = jnp.take_along_axis(seen.avail_actions, seats[..., None], 1)
        logits = jnp.where(avail, self.settings.hop_beta * q, UNAVAILABLE)
        policy = jax.nn.softmax(logits, -1)
        greedy = test_mode and self.selector.settings.test_greedy
        actions = logits.argmax(-1) if greedy else jax.random.categorical(k_act, logits)
        rows = jnp.arange(batch)[:, None]
        search = jnp.zeros_like(memory.search).at[rows, seats].set(policy)
        return actions, memory._replace(search=search)

    def plan(
        self, agent: Any, seen: Timestep, memory: HopMemory, seats: Int[Array, "batch seat"], world: Any, key: Array,
        test_mode: bool,
    ) -> Float[Array, "batch seat action"]:  # fmt: skip
        """The mean value of every action over draws of what the others are after."""
        s = self.settings
        draws = s.goal_draws if test_mode else s.train_goal_draws
        simulations = s.simulations if test_mode else s.train_simulations
        batch, per_world = seats.shape
        rows = batch * per_world * draws

        def per_row(x: Array) -> Array:
            """One row for every draw of every seat of every world."""
            spread_out = jnp.broadcast_to(x[:, None, None], (batch, per_world, draws, *x.shape[1:]))
            return spread_out.reshape(rows, *x.shape[1:])

        k_goals, k_search, k_noise = jax.random.split(key, 3)
        seat = jnp.broadcast_to(seats[..., None], (batch, per_world, draws)).reshape(rows)
        believed = memory.belief
        if self.told is not None:
            believed = jax.nn.one_hot(jax.vmap(jax.vmap(self.told))(seen.obs), self.n_goals)
        beliefs = per_row(believed)
        goals = jax.random.categorical(k_goals, jnp.log(beliefs + 1e-30))
        goals = jnp.where(per_row(seen.alive), goals, self.n_goals - 1)
        obs, avail = per_row(seen.obs.astype(jnp.float32)), per_row(seen.avail_actions)
        root = Node(jax.tree.map(per_row, world), obs, avail, goals, jnp.broadcast_to(memory.t, (rows,)))
        logits, value = self._judge(agent, root, seat)
        if not test_mode:
            logits = noisy(logits, _at(avail, seat), k_noise)
        found = search(
            root, logits, value,
            lambda k, action, node: self._expand(agent, k, action, node, seat),
            # Without planning: every action once, judged by the value of what follows.
            simulations if s.planning else self.spec.n_actions,
            k_search,
            s.c_puct,
            s.search_depth if s.planning else 1,
            try_all=True,
        )  # fmt: skip
        # What there was no simulation for is no better than the worst of what was tried.
        tried = found.visits > 0
        q = jnp.where(tried, found.q, jnp.where(tried, found.q, jnp.inf).min(-1, keepdims=True))
        return q.reshape(batch, per_world, draws, -1).mean(2)

    def _judge(self, agent: Any, node: Node, seat: Int[Array, " row"]) -> tuple[Array, Array]:
        """The networks' opinion of a place. A part of the chances goes evenly to all actions."""
        obs, avail = _at(node.obs, seat), _at(node.avail_actions, seat)
        logits, value = self.policy_value(agent["agent"], obs, self.goals_of_others(obs, node.goals, seat), avail)
        chances = (1 - OPEN_MINDED) * jax.nn.softmax(logits, -1) + OPEN_MINDED * _any(avail)
        return jnp.where(avail, jnp.log(chances + 1e-9), UNAVAILABLE), value

    def _expand(self, agent: Any, key: Array, action: Array, node: Node, seat: Array) -> tuple[Expansion, Node]:
        """One step of the real world, in which the others act by what they are after."""
        k_others, k_world, k_goals = jax.random.split(key, 3)
        rows = jnp.arange(action.shape[0])
        logits = self.co_players(agent["model"], node.obs, self.goal(node.obs, node.goals), node.avail_actions)
        joint = jax.random.categorical(k_others, logits).at[rows, seat].set(action)
        world, seen = jax.vmap(self.env.step)(node.world, joint, jax.random.split(k_world, len(rows)))
        still_open = self._open(world, joint.shape)
        # Whoever is gone is after nothing any more.
        goals = jnp.where(seen.alive, self._redraw(node.goals, still_open, k_goals), self.n_goals - 1)
        after = Node(world, seen.obs.astype(jnp.float32), seen.avail_actions, goals, node.t + 1)
        logits, value = self._judge(agent, after, seat)
        goes_on = (_at(seen.alive, seat) | self.shared) & ~seen.terminated & (after.t < self.spec.episode_limit)
        discount = self.settings.hop_gamma * goes_on
        return Expansion(_at(seen.reward, seat), discount, logits, value), after

    def _redraw(self, goals: Int[Array, "row agent"], still_open: Bool[Array, "row agent goal"], key: Array) -> Array:
        """Whose goal is gone is after another of its kind, or else after any."""
        lots = jax.random.gumbel(key, still_open.shape)
        alike = self.kind_of == self.kind_of[goals][..., None]
        aimless = jnp.arange(self.n_goals) == self.n_goals - 1
        score = jnp.where(still_open, lots + 20.0 * alike - 40.0 * aimless, -jnp.inf)
        open_now = jnp.take_along_axis(still_open, goals[..., None], -1)[..., 0]
        return jnp.where(open_now, goals, score.argmax(-1))


def _any(avail_actions: Array) -> Array:
    """Every available action as likely."""
    return avail_actions / jnp.maximum(avail_actions.sum(-1, keepdims=True), 1)


def _at(x: Array, seat: Int[Array, " row"]) -> Array:
    """`[row, agent, …]` to `[row, …]`: each row's own agent."""
    index = seat.reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.take_along_axis(x, index, 1)[:, 0]

"""HOP while acting: beliefs over the goals of co-players, and a tree search for the best response to them.

Beliefs follow the observed actions (`observe`). To decide, goals are sampled from the beliefs; for each sample a tree
is searched (`hop_planning.py`); values are averaged over the samples, and a Boltzmann distribution over them selects
the action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components import preferences
from omg.components.action_selectors import UNAVAILABLE
from omg.components.beliefs import across, close, spread, within
from omg.components.episode_buffer import Field, Scheme, pick
from omg.controllers.base import Controller, Params, uniform_over
from omg.controllers.hand_over import HandOverSettings, by_rule, plans_now
from omg.controllers.hop_planning import Planner, PlanningSettings
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.modules.co_player import CoPlayerModel
from omg.modules.goal_sets import EnvGoals, Event, GoalSet, GoalSettings, GoalSpace, LearnedGoals
from omg.modules.hop_models import HopModels
from omg.modules.intentions import IntentionSpace, entity_goals
from omg.modules.slot_goals import SlotGoals, SlotSpace
from omg.utils.settings import UserError, fill, setting

PRIOR_OF_NONE = 0.05
"""Prior probability that an unknown co-player pursues no particular goal."""


@dataclass(frozen=True)
class HopSettings(PlanningSettings, GoalSettings, HandOverSettings):
    hop_beta: float = setting(20.0, "inverse temperature of the Boltzmann distribution over action values", low=0)
    hop_hidden_dim: int = setting(64, "hidden units of HOP's networks", above=0)
    goal_memory: Literal["types", "preferences"] | None = setting(
        None,
        "kept across episodes: how often each goal type was pursued (types), or why goals are chosen (preferences); "
        "null: preferences where goals have places, otherwise types (goal_form intentions: always preferences)",
    )
    hop_alpha: float = setting(
        0.7, "goal_memory types: weight of the old belief when the next episode begins", low=0, high=1
    )
    preference_particles: int = setting(128, "goal_memory preferences: number of possible preferences", above=0)
    preference_forgetting: float = setting(
        0.05, "goal_memory preferences: probability of another co-player in the next episode", low=0, high=1
    )
    likelihood_epsilon: float = setting(
        0.05, "likelihood smoothing: weight of the uniform distribution over available actions", low=0, high=1
    )
    inter_belief: bool = setting(True, "false: every episode starts from the same belief")
    intra_belief: bool = setting(True, "false: beliefs do not change within an episode")
    use_goals: bool = setting(True, "false: the action model of co-players is not conditioned on goals")
    plan_from_state: bool = setting(False, "plan also where agents see only a part of the state, as if they saw all")
    test_greedy: bool = setting(True, "act greedily in tests")


class HopMemory(NamedTuple):
    """Beliefs about every agent in every environment, and what this episode has shown so far."""

    t: Int[Array, ""]
    prior: Float[Array, "batch agent remembered"]
    """The belief at the start of the episode: over goal types, or over preferences."""
    joint: Float[Array, "batch agent particle goal"]
    """The belief over preferences and goals (no particle with `goal_memory: types`)."""
    belief: Float[Array, "batch agent goal"]
    reached: Int[Array, "batch agent"]
    """The type of the last goal that each agent reached; -1: none yet."""
    pursued: Float[Array, "batch agent goal_type"]
    """The belief over goal types while goals of all types were still open; used for agents that reached nothing."""
    complete: Bool[Array, " batch"]
    """Whether goals of all types are still open."""
    is_open: Bool[Array, "batch goal"]
    """The goals that can be pursued now."""
    search: Float[Array, "batch agent action"]
    """In the seats that searched: the policy of the last search for one sample of goals."""
    sample: Int[Array, "batch agent agent"]
    """That sample: the goals of all agents."""


class HopMAC(Controller):
    plans = True
    can_be_opponent = False

    def __init__(
        self,
        env: MultiAgentEnv,
        config: Mapping[str, Any],
        space: GoalSpace | SlotSpace | IntentionSpace | None = None,
        oracle: Callable[[Array], Array] | None = None,
    ):
        """`oracle` maps a co-player's observation to the goal it pursues; it replaces inference in comparisons."""
        self.env, self.spec, self.space, self.oracle = env, env.spec, space, oracle
        s = self.settings = fill(HopSettings, config)
        if env.spec.partial and not s.plan_from_state:
            raise UserError(
                f"in {env.spec.name} agents see only a part of the state here, and HOP searches in the whole: "
                "--plan_from_state=true allows it (then HOP knows more than the others)."
            )
        goals: GoalSet = EnvGoals(env)
        if isinstance(space, SlotSpace):
            goals = SlotGoals(env, space)
        elif isinstance(space, IntentionSpace):
            goals = entity_goals(env)
        elif space is not None:
            goals = LearnedGoals(env, space)
        self.models = HopModels(env, goals, s.hop_hidden_dim, s.use_goals)
        self.planner = Planner(env, self.models, s)
        self.needs = ("goals",) if s.learned_goals else ()
        self.present = self.models.by_type(jnp.ones(self.models.n_goals)) > 0
        known = self.present * (1 - PRIOR_OF_NONE) / jnp.maximum(self.present.sum() - 1, 1)
        known = known.at[-1].set(PRIOR_OF_NONE)
        self.first_prior = known / known.sum()
        """The belief over the goal types of a co-player that was never met."""
        self.preferences: preferences.Preferences | None = None
        if isinstance(space, IntentionSpace):
            # Learned preferences take the place of sampled ones, whatever goal_memory says.
            self.preferences = space.preferences
        elif goals.n and (s.goal_memory == "preferences" or (s.goal_memory is None and goals.placed)):
            self.preferences = preferences.particles(s.preference_particles, self.models.n_types)

    @classmethod
    def create(cls, env: MultiAgentEnv, config: Mapping[str, Any], artifacts: Mapping[str, Any]) -> HopMAC:
        return cls(env, config, artifacts.get("goals"))

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        return [HopSettings]

    @classmethod
    def needs_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        return ("goals",) if fill(HopSettings, config).learned_goals else ()

    @property
    def scheme(self) -> Scheme:
        return {
            "search": Field((self.spec.n_actions,), "float16", "agents"),
            "sample": Field((self.spec.n_agents,), "int16", "agents"),
            "reached": Field((), "int16", "agents"),
            "is_open": Field((self.models.n_goals,), "bool"),
        }

    def init_params(self, key: Array) -> Params:
        return self.models.init_params(key)

    def init_memory(self, params: Any, batch: int, seats: int | None = None, prior: Array | None = None) -> HopMemory:
        n, m, p = self.spec.n_agents, self.models, self.preferences
        if prior is None:
            first = self.first_prior if p is None else p.weights
            prior = jnp.broadcast_to(first, (batch, n, len(first)))
        # With preferences, the belief follows from the first observation (`_begin`).
        of_types = prior if p is None else jnp.broadcast_to(self.first_prior, (batch, n, m.n_types))
        belief = spread(of_types, m.type_of, jnp.ones((batch, n, m.n_goals), bool))
        return HopMemory(
            jnp.int32(0), prior, jnp.zeros((batch, n, 0 if p is None else len(p.weights), m.n_goals)), belief,
            jnp.full((batch, n), -1, jnp.int32), of_types, jnp.ones(batch, bool),
            is_open=jnp.ones((batch, m.n_goals), bool),
            search=jnp.zeros((batch, n, self.spec.n_actions)),
            sample=jnp.zeros((batch, n, n), jnp.int32),
        )  # fmt: skip

    def select_actions(
        self,
        params: Params,
        seen: Timestep,
        memory: HopMemory,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, "batch seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], HopMemory]:
        batch, n = seen.obs.shape[:2]
        if seats is None:
            seats = jnp.broadcast_to(jnp.arange(n), (batch, n))
        k_plan, k_act = jax.random.split(key)
        given, seen = seen.obs, self.own_first(seen)
        memory = self._begin(memory, seen)
        belief = memory.belief
        if self.oracle is not None:
            belief = jax.nn.one_hot(jax.vmap(jax.vmap(self.oracle))(given), self.models.n_goals)
        planned = self.planner.plan(params, seen, belief, memory.t, seats, env_state, k_plan, bool(test_mode))
        avail = jnp.take_along_axis(seen.avail_actions, seats[..., None], 1)
        logits, of_sample = (
            jnp.where(avail, self.settings.hop_beta * q, UNAVAILABLE) for q in (planned.q, planned.sample_q)
        )
        greedy = test_mode and self.settings.test_greedy
        actions = logits.argmax(-1) if greedy else jax.random.categorical(k_act, logits)
        if self.rule is not None:
            planning = plans_now(self.settings, belief, seen.alive, seats, t_env, bool(test_mode))
            actions = jnp.where(
                planning, actions, by_rule(self.rule, given, avail, seats, jax.random.fold_in(k_act, 1))
            )
        rows = jnp.arange(batch)[:, None]
        # The policy is learned for the goals that the search assumed.
        search = jnp.zeros_like(memory.search).at[rows, seats].set(jax.nn.softmax(of_sample, -1))
        sample = memory.sample.at[rows, seats].set(planned.sample)
        return actions, memory._replace(search=search, sample=sample)

    def observe(
        self,
        params: Params,
        memory: HopMemory,
        seen: Timestep,
        actions: Int[Array, "batch agent"],
        env_state: Any,
        shown: Timestep,
        running: Bool[Array, " batch"],
    ) -> tuple[HopMemory, dict[str, Array]]:
        """Bayes' rule for every agent and goal, b(g) ∝ b(g)·π_ω(a | s, g), over the goals that are still open."""
        seen, shown = self.own_first(seen), self.own_first(shown)
        s, m, obs = self.settings, self.models, seen.obs.astype(jnp.float32)
        memory = self._begin(memory, seen)
        near = seen.alive & self._near(obs)
        probabilities = self._action_probabilities(params["model"], obs, seen.avail_actions, near)
        expected = (memory.belief[..., None] * probabilities).sum(-2)
        of_taken = pick(probabilities, jnp.broadcast_to(actions[..., None], probabilities.shape[:-1]))
        likelihood = self.smoothed(of_taken, seen.avail_actions[:, :, None])
        evidence = jnp.where(near[..., None], likelihood, 1.0)
        likelihood = evidence if s.intra_belief else jnp.ones_like(evidence)

        is_open = self.planner.open_goals(env_state, shown.obs)
        reached = m.goals.reached(Event(seen, env_state, shown, memory.t))
        posterior = within(memory.belief, likelihood)
        if self.preferences is None:
            belief, joint = self._by_types(memory, posterior, is_open, reached), memory.joint
        else:
            belief, joint = self._by_preferences(memory, evidence, is_open, reached, shown)
        reached_type = jnp.where(reached >= 0, m.type_of[reached], memory.reached)
        record = {
            "search": memory.search,
            "sample": memory.sample,
            "reached": reached,
            "is_open": memory.is_open,
            "belief": memory.belief,
            # After the action, before this step closes any goal.
            "posterior": posterior,
            "predicted": jnp.where(seen.avail_actions, expected, -1.0).argmax(-1),
            "inferred": near,
        }
        # Finished episodes keep their memory.
        on = running[:, None]
        memory = memory._replace(
            t=memory.t + 1,
            joint=jnp.where(on[..., None, None], joint, memory.joint),
            belief=jnp.where(on[..., None], belief, memory.belief),
            reached=jnp.where(on, reached_type, memory.reached),
            pursued=jnp.where((running & memory.complete)[:, None, None], m.by_type(posterior), memory.pursued),
            complete=memory.complete & ((m.by_type(is_open[:, 0]) > 0) | ~self.present).all(-1),
            is_open=jnp.where(running[:, None], is_open[:, 0], memory.is_open),
        )
        return memory, record

    def own_first(self, seen: Timestep) -> Timestep:
        return seen._replace(obs=self.env.own_first(seen.obs))

    def _by_types(self, memory: HopMemory, posterior: Array, is_open: Array, reached: Array) -> Array:
        """The belief after some goals closed or were reached."""
        m = self.models
        anew = spread(memory.prior, m.type_of, is_open)
        belief = close(posterior, is_open, m.type_of)
        if not m.goals.placed:
            # These goals never close, but an agent may give one up.
            hazard = self.settings.goal_hazard
            belief = (1 - hazard) * belief + hazard * anew
        closed = ~jnp.take_along_axis(is_open, jnp.maximum(reached, 0)[..., None], -1)[..., 0]
        restart = (reached >= 0) & (closed | m.goals.chosen_anew)
        return jnp.where(restart[..., None], anew, belief)

    def _by_preferences(
        self, memory: HopMemory, evidence: Array, is_open: Array, reached: Array, shown: Timestep
    ) -> tuple[Float[Array, "batch agent goal"], Float[Array, "batch agent particle goal"]]:
        """The beliefs over goals, and over preferences and goals, after an action.

        Without a belief within episodes (`intra_belief`), goals follow from what was known before the episode.
        """
        choice = self._choices(shown, is_open)
        stays = is_open * (reached < 0)[..., None] * (1.0 - self.settings.goal_hazard)
        evidence = evidence * preferences.of_reaching(reached, self.models.n_goals)
        joint = preferences.chosen_again(preferences.explained(memory.joint, evidence), stays, choice)
        believed = joint if self.settings.intra_belief else memory.prior[..., None] * choice
        return believed.sum(-2), joint

    def _choices(self, seen: Timestep, is_open: Array) -> Float[Array, "batch agent particle goal"]:
        """P(g | s, θ) of all agents."""
        m = self.models
        assert self.preferences is not None
        far = m.goals.distance(seen.obs.astype(jnp.float32))
        goals = preferences.describe(far, is_open[:, 0, :-1], seen.alive, m.type_of, m.n_types)
        return preferences.choices(self.preferences.theta, goals, is_open)

    def _begin(self, memory: HopMemory, seen: Timestep) -> HopMemory:
        """With preferences, the belief before the first action."""
        if self.preferences is None:
            return memory
        all_open = jnp.broadcast_to(memory.is_open[:, None], memory.belief.shape)
        first = memory.t == 0
        joint = jnp.where(first, memory.prior[..., None] * self._choices(seen, all_open), memory.joint)
        return memory._replace(joint=joint, belief=jnp.where(first, joint.sum(-2), memory.belief))

    def next_prior(self, memory: HopMemory) -> Float[Array, "batch agent remembered"]:
        """The belief at the start of the next episode with the same co-players."""
        if not self.settings.inter_belief:
            return memory.prior
        if self.preferences is not None:
            return preferences.remembered(memory.joint, self.preferences.weights, self.settings.preference_forgetting)
        reached = jnp.arange(self.models.n_types) == memory.reached[..., None]
        pursued = jnp.where(memory.reached[..., None] >= 0, reached, memory.pursued)
        return across(memory.prior, pursued, self.settings.hop_alpha)

    def smoothed(self, of_taken: Float[Array, "*rows goal"], avail_actions: Array) -> Float[Array, "*rows goal"]:
        """Likelihoods of the action taken, mixed with the uniform distribution: no single action excludes a goal."""
        weight = self.settings.likelihood_epsilon
        return (1 - weight) * of_taken + weight / jnp.maximum(avail_actions.sum(-1), 1)

    def _near(self, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch agent"]:
        """Agents near enough to some goal for their actions to be informative (`gate_distance`)."""
        gate = self.settings.gate_distance
        if gate is None or not self.models.goals.n:
            return jnp.ones(obs.shape[:2], bool)
        return self.models.goals.distance(obs).min(-1) <= gate

    def _action_probabilities(
        self, model: CoPlayerModel, obs: Array, avail_actions: Array, near: Array
    ) -> Float[Array, "batch agent goal action"]:
        """π_ω(a | s, g) of all agents for every goal. Skipped while no agent is near a goal."""

        def compute(_: None) -> Array:
            return jax.nn.softmax(self.models.logits_of_goals(model, obs, avail_actions), -1)

        if self.settings.gate_distance is None:
            return compute(None)
        shape = (*obs.shape[:2], self.models.n_goals, avail_actions.shape[-1])
        uniform = jnp.broadcast_to(uniform_over(avail_actions)[:, :, None], shape)
        return jax.lax.cond(near.any(), compute, lambda _: uniform, None)

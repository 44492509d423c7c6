"""The interface of an environment: two pure functions, `reset` and `step`, and a static `spec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.utils.settings import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

    from omg.envs.scene import Scene

GameType = Literal["cooperative", "zero-sum", "mixed"]


def check_game_type(value: Any) -> GameType:
    """The value of `env_args.game_type`, if it is a game type; otherwise an error."""
    if value not in get_args(GameType):
        raise UserError(f"env_args.game_type takes 'cooperative', 'zero-sum' or 'mixed', not {value!r}.")
    return value


class Storage(NamedTuple):
    """How the replay buffer stores a vector: each entry is an integer multiple of `scale`, stored as `dtype`.

    With `scale` 1 the entries are converted to `dtype` as they are.
    """

    dtype: str = "float32"
    scale: float = 1.0


PLAIN = Storage()


@dataclass(frozen=True)
class Spec:
    """The static description of an environment."""

    name: str
    """The environment's name. Scripted policies are registered under this name."""
    n_agents: int
    n_actions: int
    """The size of the largest action set. Agents with fewer actions have the rest masked."""
    obs_size: int
    """The length of an agent's observation vector."""
    state_size: int
    """The length of the global state vector (used by centralised training)."""
    episode_limit: int
    """The time limit of an episode in steps."""
    game_type: GameType
    """How the agents' rewards relate: all the same, summing to zero, or neither."""
    obs_storage: Storage = PLAIN
    """A lossless compact format of observations in the replay buffer."""
    state_storage: Storage = PLAIN
    obs_layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the components of an observation, in order; may be empty. Scripted policies, HOP+ and
    `obs_relative` read it.
    """
    agents_in_state: tuple[tuple[int, ...], ...] = ()
    """For every agent the places in the global state that describe it alone. OMG+ learns with it; may be empty."""
    agents_in_obs: str = ""
    """The component of `obs_layout` that lists the agents, the observing one first; the other tables list entities.

    An entity's row begins with its cell (row and column) and ends with its presence (0: gone or out of sight). An
    agent's row may be its cell alone, where no agent leaves. HOP+ learns with it, and `obs_relative` needs it; may be
    empty.
    """
    partial: bool = False
    """Whether agents, or what they compete for, can be out of an agent's sight. HOP refuses to plan there."""
    entity_step: float = 0.0
    """Where the tables in `obs_layout` hold offsets (x and y) from the observing agent instead of cells: the length of
    a step. The table of agents then lists the other ones only.
    """
    cell_size: float = 0.0
    """The length of a cell in the tables of `obs_layout`; 0: the scale of `obs_storage`."""

    def team_reward(self, reward: Float[Array | np.ndarray, "*axes agent"]) -> Float[Array, "*axes"]:
        """One reward for the team.

        Cooperative games: the reward that all agents share. Mixed games: the sum over agents. Zero-sum games: the
        first agent's reward, because the sum is always zero.
        """
        reward = jnp.asarray(reward)
        if self.game_type == "cooperative":
            return reward.mean(-1)
        return reward.sum(-1) if self.game_type == "mixed" else reward[..., 0]


def rows_of(start: int, agents: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Places of a vector in which every agent has a row of so many numbers, one row after the other."""
    return tuple(tuple(range(start + i * size, start + (i + 1) * size)) for i in range(agents))


class Timestep(NamedTuple):
    """What `reset` and `step` return besides the new environment state."""

    obs: Float[Array, "agent obs"]
    """One observation vector per agent."""
    state: Float[Array, " state"]
    """The global state vector."""
    avail_actions: Bool[Array, "agent action"]
    """Which actions each agent may take now. Every agent has at least one, dead agents too."""
    reward: Float[Array, " agent"]
    """The reward of the last step; zeros after `reset`."""
    terminated: Bool[Array, ""]
    """Whether the game ended. False at the time limit: that is a truncation, which the runner handles."""
    alive: Bool[Array, " agent"]
    """False for agents that died or left the episode."""
    info: dict[str, Array]
    """Scalars to log. Every step has the same keys."""


class Goals(NamedTuple):
    """The goals of an environment at one time step."""

    open: Bool[Array, " goal"]
    """Whether the goal can still be reached."""
    reached: Int[Array, " agent"]
    """Which goal each agent reached in the last step; -1 if none."""


class MultiAgentEnv:
    """Base class of all environments.

    The environment state that `reset` and `step` pass on is any pytree. Both are pure functions that JAX can compile
    and `vmap`.
    """

    spec: Spec
    n_goals: int = 0
    """The number of goals; 0 if the environment defines none."""
    goal_types: tuple[int, ...] = ()
    """The type of each goal, `n_goals` entries. Goals change from episode to episode, goal types do not."""
    goal_size: int = 0
    """The number of features that describe a goal."""
    goal_names: tuple[str, ...] = ()
    """Labels of the goals in figures."""
    exclusive_goals: bool = True
    """Whether who pursues one goal would not take the action that reaches another."""
    seat_colours: tuple[tuple[int, int, int], ...] = ((90, 90, 90),)
    """The colours that `render` gives to the agents, repeated if there are more agents."""
    action_names: tuple[str, ...] = ()
    """Labels of the actions in figures; without them they are numbered."""

    def reset(self, key: Array) -> tuple[Any, Timestep]:
        """Starts an episode.

        Args:
            key: the random key of the initial state.

        Returns:
            The environment state and the first time step.
        """
        raise UserError(f"the environment {type(self).__name__} must define reset(key).")

    def step(self, state: Any, actions: Int[Array, " agent"], key: Array) -> tuple[Any, Timestep]:
        """Takes one joint action.

        Args:
            state: the environment state.
            actions: one action per agent.
            key: the random key of this step.

        Returns:
            The new environment state and time step.
        """
        raise UserError(f"the environment {type(self).__name__} must define step(state, actions, key).")

    def goals(self, state: Any) -> Goals:
        """The goals in this environment state."""
        raise NotImplementedError(f"{type(self).__name__} does not implement goals(state)")

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """`goal_size` features of every goal, computed from an agent's observation."""
        raise NotImplementedError(f"{type(self).__name__} does not implement goal_features(obs)")

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        """The agent's distance to every goal; zeros in environments without distances."""
        return jnp.zeros((*obs.shape[:-1], self.n_goals))

    def own_first(self, obs: Float[Array, "*rows agent obs"]) -> Float[Array, "*rows agent obs"]:
        """The observations of all agents, in each of which the observing agent comes first.

        HOP's networks are shared by all seats and know them only by the observation.
        """
        return obs

    def draw(self, state: Any) -> Scene | None:
        """A drawing of the environment state as shapes, or None if the environment cannot be drawn."""
        return None

    def imagine(self, state: Any, described: np.ndarray) -> Any | None:
        """`state`, changed to what a global state vector describes, for drawings of decoded subgoals.

        The vector is a network's output: positions lie between cells, and no game needs to reach it. None: the
        environment cannot draw such a vector.
        """
        return None

    def render(self, state: Any) -> Image | None:
        """A picture of the environment state: the drawing, painted. None if there is none."""
        scene = self.draw(state)
        return None if scene is None else scene.paint()

    @property
    def can_draw(self) -> bool:
        """Whether the environment defines `draw`, or `render` itself."""
        return type(self).draw is not MultiAgentEnv.draw or type(self).render is not MultiAgentEnv.render


def checked(env: MultiAgentEnv) -> MultiAgentEnv:
    """The environment, if its time steps have the shapes of its spec.

    Those of this package are tested instead, and those that run in Python are checked when they play.
    """
    if type(env).__module__.startswith("omg.") or type(env).reset is MultiAgentEnv.reset:
        return env
    spec, name, key = env.spec, env.spec.name, jax.random.key(0)
    check_game_type(spec.game_type)
    n = spec.n_agents
    sizes = {
        "obs": ("n_agents, obs_size", (n, spec.obs_size)),
        "state": ("state_size", (spec.state_size,)),
        "avail_actions": ("n_agents, n_actions", (n, spec.n_actions)),
        "reward": ("n_agents", (n,)),
        "terminated": ("", ()),
        "alive": ("n_agents", (n,)),
    }

    def state_of(what: str, returned: Any) -> Any:
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Timestep)):
            raise UserError(f"{name}: {what} must return the environment's state and a Timestep.")
        for field, (meaning, shape) in sizes.items():
            found = jnp.shape(getattr(returned[1], field))
            if found != shape:
                raise UserError(
                    f"{name}: {what} returns {field} of shape {found}; by its spec it is [{meaning}] = {shape}."
                )
        return returned[0]

    state = state_of("reset", jax.eval_shape(env.reset, key))
    after = state_of("step", jax.eval_shape(env.step, state, jnp.zeros(n, jnp.int32), key))
    leaves, structures = zip(*(jax.tree.flatten(s) for s in (state, after)), strict=True)
    types = [[(x.shape, x.dtype) for x in of_state] for of_state in leaves]
    if types[0] != types[1] or structures[0] != structures[1]:
        raise UserError(f"{name}: step returns a state with other shapes or types than reset.")
    return env

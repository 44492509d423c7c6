"""Recorded test episodes: what was drawn, done and earned at every step, and what the focal agent inferred.

Inferences are the subgoal ĝ_t, decoded (or the state of the episode nearest to it), and the state that was chosen in
hindsight (OMG), the predicted actions of the others beside those they took (naive, LIAM), beliefs over goals (HOP), and
the policy or values of the agent itself.
An episode is written as `episode.json` (the page in the browser plays it) and as a GIF.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, Field, FocalBatch, make_scheme, refine, time_first
from omg.controllers import BasicMAC, Controller, HopMAC
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.envs.scene import Scene
from omg.evaluation.encounters import chosen_ahead, nearest_state
from omg.evaluation.runs import EPISODE
from omg.modules.vae import VAE
from omg.runners import PolicyGroup, VectorRunner
from omg.utils.files import write_text
from omg.utils.settings import UserError

VERSION = 1


class Rows(NamedTuple):
    """Numbers for every step: a row for each agent, a column for each goal or action."""

    title: str
    seats: list[int]
    """The agent that each row is about."""
    names: list[str]
    values: np.ndarray
    """`[step, row, name]`; NaN: not available."""
    alive: np.ndarray
    """`[step, row]`."""
    taken: np.ndarray | None = None
    """The name that came true, `[step, row]`."""
    probabilities: bool = True
    own: bool = False
    """Whether the agent's own policy is shown, and not what it infers about others."""


class Moments(NamedTuple):
    """For every step another step of the episode: the state that an agent has in mind."""

    title: str
    steps: np.ndarray
    ahead: bool
    """Whether the distance to that step is part of the title."""


class Imagined(NamedTuple):
    """For every step a scene that a network describes: no state of the game, and positions may lie between cells."""

    title: str
    scenes: list[Scene]


@dataclass
class Episode:
    """One episode of an environment. There is one scene more than there are steps."""

    env: str
    seats: list[str]
    """Which agent or policy acts in each seat."""
    colours: list[tuple[int, int, int]]
    action_names: list[str]
    scenes: list[Scene]
    actions: np.ndarray
    """`[step, agent]`."""
    rewards: np.ndarray
    """`[step, agent]`."""
    alive: np.ndarray
    """Whether an agent still plays when it acts, `[step, agent]`."""
    team_return: np.ndarray
    """The team's return so far, `[step + 1]`."""
    cooperative: bool
    focal: int | None = None
    shown: list[Rows | Moments | Imagined] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.actions)

    @property
    def own_return(self) -> np.ndarray:
        """The return so far of the focal agent (or of the first one)."""
        return np.concatenate([[0.0], self.rewards[:, self.focal or 0].cumsum()])

    def as_json(self) -> dict[str, Any]:
        """What all scenes begin with (the lines of a board) is written once."""
        shapes = [scene.shapes for scene in self.scenes]
        every = shapes + [scene.shapes for entry in self.shown if isinstance(entry, Imagined) for scene in entry.scenes]
        same = min(map(len, every))
        same = next((i for i in range(same) if any(s[i] != shapes[0][i] for s in every)), same)
        first = self.scenes[0]
        return {
            "version": VERSION, "env": self.env, "seats": self.seats, "focal": self.focal,
            "colours": ["#{:02x}{:02x}{:02x}".format(*c) for c in self.colours], "action_names": self.action_names,
            "cooperative": self.cooperative, "size": [first.width, first.height], "ground": first.ground,
            "board": shapes[0][:same], "frames": [s[same:] for s in shapes], "sights": [s.sights for s in self.scenes],
            "actions": self.actions.tolist(), "rewards": _round(self.rewards),
            "alive": self.alive.astype(int).tolist(), "team_return": _round(self.team_return),
            "own_return": _round(self.own_return),
            "shown": [_shown(entry, same) for entry in self.shown],
        }  # fmt: skip

    def save(self, folder: Path) -> Path:
        path = folder / EPISODE
        write_text(path, json.dumps(self.as_json(), separators=(",", ":")))
        return path


def _shown(entry: Rows | Moments | Imagined, same: int) -> dict[str, Any]:
    """`same`: so many shapes at the beginning are those of the board."""
    if isinstance(entry, Imagined):
        return {"form": "scenes", "title": entry.title, "frames": [s.shapes[same:] for s in entry.scenes]}
    if isinstance(entry, Moments):
        return {"form": "moments", "title": entry.title, "steps": entry.steps.tolist(), "ahead": entry.ahead}
    return {
        "form": "rows", "title": entry.title, "seats": entry.seats, "names": entry.names,
        "values": _round(entry.values), "alive": entry.alive.astype(int).tolist(),
        "taken": None if entry.taken is None else entry.taken.tolist(), "probabilities": entry.probabilities,
        "own": entry.own,
    }  # fmt: skip


def _round(values: Any) -> Any:
    """Five digits; JSON has no NaN."""
    array = np.round(np.asarray(values, float), 5).astype(object)
    array[array != array] = None
    return array.tolist()


# --- playing


def check_render(env: MultiAgentEnv) -> None:
    """Refuses an environment that cannot draw itself, before the run and not after it."""
    if not env.can_draw:
        raise UserError(f"{env.spec.name} cannot draw itself: run again without --save_replay.")


def record_team(env: MultiAgentEnv, mac: Any, agent: Any, key: Array, name: str = "agent") -> Episode:
    """One test episode of a team, with beliefs if the agents have them."""
    (states,), batch = play_episodes(env, mac, agent, key, 1)
    n = env.spec.n_agents
    episode = episode_of(env, states, batch, [name] * n)
    add_beliefs(episode, env, mac, batch)
    return episode


def record_focal(
    env: MultiAgentEnv,
    focal: Any,
    agent: Any,
    opponents: PolicyGroup,
    key: Array,
    vae: VAE | None = None,
    names: tuple[str, str] = ("focal agent", "partner"),
) -> Episode:
    """The agent in the first seat, the last member of a group of opponents in all others; `names` are theirs."""
    last = opponents._replace(policies=jax.tree.map(lambda x: x[-1:], opponents.policies), ids=opponents.ids[-1:])
    return record_each(env, focal, agent, last, key, vae, names[0], [names[1]])[0]


def record_each(
    env: MultiAgentEnv,
    focal: Any,
    agent: Any,
    opponents: PolicyGroup,
    key: Array,
    vae: VAE | None,
    name: str,
    members: Sequence[str],
) -> list[Episode]:
    """An episode with every member of a group, in one program; `name` and `members` are the names of the seats."""
    n = env.spec.n_agents
    mac = MultiModuleMAC(env.spec, focal, (0,), (Side(opponents.mac, tuple(range(1, n)), opponents.size),))
    played, batch = play_episodes(env, mac, TeamPolicies(agent, (opponents.policies,)), key, n * opponents.size)
    focal_batch = refine(batch, n) if isinstance(focal, BasicMAC) else None
    episodes = []
    for row, member in enumerate(members):
        # The first rows have the agent in the first seat, with one member after the other.
        episode = episode_of(env, played[row], batch, [name, *[member] * (n - 1)], row)
        episode.focal = 0
        if isinstance(focal, HopMAC):
            add_beliefs(episode, env, focal, batch, row)
        elif focal_batch is not None:
            if vae is not None:
                add_subgoals(episode, env, played[row], focal, agent, focal_batch, vae, key, row)
            add_predictions(episode, focal, agent, focal_batch, row)
            add_policy(episode, focal, agent, focal_batch, row)
        episodes.append(episode)
    return episodes


def play_episodes(
    env: MultiAgentEnv, mac: Controller, params: Any, key: Array, envs: int
) -> tuple[list[list[Any]], EpisodeBatch]:
    """Test episodes: the states of each up to its end, and all of them as a batch."""
    scheme, groups = make_scheme(env.spec)
    if mac.plans:
        trained: Any = mac.trained if isinstance(mac, MultiModuleMAC) else mac
        scheme["belief"] = Field((trained.models.n_goals,), "float32", "agents")
    runner = VectorRunner(env, mac, scheme, groups, envs)
    played = jax.jit(lambda p, k: runner.play(p, jnp.int32(0), k, True, record=True))(params, key)
    assert played.batch is not None
    states = jax.device_get(played.states)

    def of_row(row: int, length: int) -> list[Any]:
        return [jax.tree.map(lambda x, t=t: x[t, row], states) for t in range(length + 1)]

    each = [of_row(row, int(length)) for row, length in enumerate(played.stats.lengths)]
    # The focal agent's seat in every episode: [seat, member].
    seats = jnp.repeat(jnp.arange(env.spec.n_agents, dtype=jnp.int8), max(envs // env.spec.n_agents, 1))[:envs]
    return each, played.batch.with_fields(agent_idx=seats[:, None])


def episode_of(env: MultiAgentEnv, states: list[Any], batch: EpisodeBatch, seats: list[str], row: int = 0) -> Episode:
    """One episode of a batch, drawn."""
    steps, n = len(states) - 1, env.spec.n_agents
    named = len(env.action_names) == env.spec.n_actions
    rewards = np.asarray(batch.reward[row], float)[:steps]
    return Episode(
        env=env.spec.name,
        seats=seats,
        colours=[env.seat_colours[i % len(env.seat_colours)] for i in range(n)],
        action_names=list(env.action_names) if named else [str(i) for i in range(env.spec.n_actions)],
        scenes=[scene_of(env, state) for state in states],
        actions=np.asarray(batch.actions[row])[:steps],
        rewards=rewards,
        alive=np.asarray(batch.alive[row])[:steps] > 0,
        team_return=np.concatenate([[0.0], np.asarray(env.spec.team_reward(rewards), float).cumsum()]),
        cooperative=env.spec.game_type == "cooperative",
    )


def scene_of(env: MultiAgentEnv, state: Any) -> Scene:
    scene = env.draw(state)
    if scene is None:
        picture = env.render(state)
        if picture is None:
            raise UserError(f"{env.spec.name} cannot draw all of its states: run again without --save_replay.")
        scene = Scene(*picture.size)
        scene.picture(picture)
    return scene


# --- what the agents infer


def add_subgoals(
    episode: Episode,
    env: MultiAgentEnv,
    states: list[Any],
    focal: BasicMAC,
    agent: Any,
    batch: FocalBatch,
    vae: VAE,
    key: Array,
    row: int = 0,
) -> None:
    """What ĝ_t describes, or where that cannot be drawn the state nearest to it; and the hindsight choice."""
    seen = focal.seen(batch)
    am: Any = focal.am
    inferred, of_states = focal.infer_all(agent, seen, batch).embedding, am.latents(vae, seen, batch)
    points = am.as_state(inferred, of_states)
    nearest = nearest_state(points, of_states.mu, time_first(batch.filled))
    chosen = chosen_ahead(focal, agent, seen, inferred, of_states, batch, key)
    now, last = np.arange(episode.steps), episode.steps
    state, ahead = (np.asarray(x[:last, row, 0]) for x in (nearest, chosen))
    own, whole = np.asarray(batch.obs[row, : last + 1, 0]), np.asarray(batch.state[row, : last + 1, 0])
    described = am.decoded(vae, points, batch, own.shape == whole.shape and bool((own == whole).all()))
    scenes = None if described is None else imagined(env, states, np.asarray(described[:last, row, 0], float))
    if scenes:
        episode.shown.append(Imagined("inferred subgoal, decoded", scenes))
    else:
        episode.shown.append(Moments("inferred subgoal (nearest state)", np.minimum(state, last), False))
    episode.shown.append(Moments("hindsight choice", np.minimum(now + ahead, last), True))


def imagined(env: MultiAgentEnv, states: Sequence[Any], described: np.ndarray) -> list[Scene]:
    """The scene that each global state vector describes; none if the environment cannot draw them."""
    scenes: list[Scene] = []
    if not np.isfinite(described).all():
        return scenes
    for state, vector in zip(states[: len(described)], described, strict=True):
        changed = env.imagine(state, vector)
        scene = None if changed is None else env.draw(changed)
        if scene is None:
            return []
        scenes.append(scene)
    return scenes


def add_predictions(episode: Episode, focal: BasicMAC, agent: Any, batch: FocalBatch, row: int = 0) -> None:
    """The predicted action probabilities of every other agent, and the action that it then took."""
    inferred = focal.infer_all(agent, focal.seen(batch), batch)
    predicted = focal.am.predicted_actions(agent, inferred)
    if predicted is None:
        return
    others = [seat for seat in range(len(episode.seats)) if seat != episode.focal]
    values, alive, taken = (
        np.asarray(x[: episode.steps, row, 0])
        for x in (predicted, time_first(batch.others_alive), time_first(batch.others_actions))
    )
    episode.shown.append(Rows("predicted next action", others, episode.action_names, values, alive, taken))


def add_policy(episode: Episode, focal: BasicMAC, agent: Any, batch: FocalBatch, row: int = 0) -> None:
    """The focal agent's action values, or its policy, over the actions that were available."""
    seen = focal.seen(batch)
    embedding = focal.infer_all(agent, seen, batch).embedding
    outputs = focal.unroll_on(agent["agent"], seen, embedding).outputs[: episode.steps, row, 0]
    avail = np.asarray(time_first(batch.avail_actions)[: episode.steps, row, 0]) > 0
    policy = focal.settings.agent_output_type == "pi_logits"
    numbers = np.asarray(focal.policy(outputs, jnp.asarray(avail), 0.0) if policy else outputs, float)
    values = np.where(avail, numbers, np.nan)[:, None]
    seat = episode.focal or 0
    alive = np.asarray(time_first(batch.mask)[: episode.steps, row])[:, :1]
    taken = episode.actions[:, [seat]]
    title = "own policy" if policy else "own action values"
    episode.shown.append(Rows(title, [seat], episode.action_names, values, alive, taken, policy, own=True))


def add_beliefs(episode: Episode, env: MultiAgentEnv, mac: Any, batch: EpisodeBatch, row: int = 0) -> None:
    """The beliefs at every step: one row per agent, one column per goal."""
    if not isinstance(mac, HopMAC):
        return
    names = [*(env.goal_names if mac.space is None else (f"g{i}" for i in range(mac.models.goals.n))), "none"]
    beliefs, alive = np.asarray(batch["belief"][row], float), np.asarray(batch.alive[row])
    steps, seats = episode.steps, list(range(len(episode.seats)))
    episode.shown.append(Rows("belief over goals, by agent", seats, names, beliefs[:steps], alive[:steps]))

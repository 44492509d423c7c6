"""Recorded test episodes: what was drawn, done and earned at every step, and what the focal agent inferred.

Inferences are the subgoal ĝ_t, decoded (or the state of the episode nearest to it), and the state that was chosen in
hindsight (OMG), the predicted actions of the others beside those they took (naive, LIAM), beliefs over goals (HOP), and
the policy or values of the agent itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import (
    EpisodeBatch,
    Field,
    FocalBatch,
    all_agents,
    make_scheme,
    refine,
    time_first,
)
from omg.controllers import BasicMAC, Controller, HopMAC
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.envs.scene import Scene
from omg.evaluation.encounters import chosen_ahead, mean_embedding, nearest_state
from omg.evaluation.episode import Episode, Imagined, Moments, Rows
from omg.modules.vae import VAE
from omg.runners import PolicyGroup, VectorRunner
from omg.utils.settings import UserError


def check_render(env: MultiAgentEnv) -> None:
    """Refuses an environment that cannot draw itself, before the run and not after it."""
    if not env.can_draw:
        raise UserError(f"{env.spec.name} cannot draw itself: run again without --save_replay.")


def record_team(env: MultiAgentEnv, mac: Any, agent: Any, key: Array, name: str = "agent") -> Episode:
    """One test episode of a team, with its policies or action values, and beliefs if the agents have them."""
    (states,), batch = play_episodes(env, mac, agent, key, 1)
    n = env.spec.n_agents
    episode = episode_of(env, states, batch, [name] * n)
    if isinstance(mac, HopMAC):
        add_beliefs(episode, env, mac, batch)
        add_searches(episode, batch)
    elif isinstance(mac, BasicMAC):
        add_policy(episode, mac, agent, all_agents(batch, n), seats=range(n))
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
    focal_batch, embeddings = None, np.zeros(())
    if isinstance(focal, BasicMAC):
        focal_batch = refine(batch, n)
        inferred = focal.infer_all(agent, focal.seen(focal_batch), focal_batch)
        embeddings = np.asarray(mean_embedding(inferred, focal_batch))
    episodes = []
    for row, member in enumerate(members):
        # The first rows have the agent in the first seat, with one member after the other.
        episode = episode_of(env, played[row], batch, [name, *[member] * (n - 1)], row)
        episode.focal = 0
        if isinstance(focal, HopMAC):
            add_beliefs(episode, env, focal, batch, row)
            add_searches(episode, batch, row)
        elif focal_batch is not None:
            if vae is not None:
                add_subgoals(episode, env, played[row], focal, agent, focal_batch, vae, key, row)
            add_predictions(episode, focal, agent, focal_batch, row)
            add_policy(episode, focal, agent, focal_batch, row)
            episode.embedding = embeddings[row, 0]
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
        scheme["search"] = Field((env.spec.n_actions,), "float32", "agents")
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
    points = am.as_state(am.subgoals_in(inferred), of_states)
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


def add_policy(
    episode: Episode, mac: BasicMAC, agent: Any, batch: FocalBatch, row: int = 0, seats: Sequence[int] | None = None
) -> None:
    """The action values or the policy of these seats (None: of the focal agent), over the available actions."""
    seen = mac.seen(batch)
    embedding = mac.infer_all(agent, seen, batch).embedding
    columns = [0] if seats is None else list(seats)
    outputs = mac.unroll_on(agent["agent"], seen, embedding).outputs[: episode.steps, row][:, np.array(columns)]
    avail = np.asarray(time_first(batch.avail_actions)[: episode.steps, row])[:, columns] > 0
    policy = mac.settings.agent_output_type == "pi_logits"
    numbers = np.asarray(mac.policy(outputs, jnp.asarray(avail), 0.0) if policy else outputs, float)
    alive = np.asarray(time_first(batch.mask)[: episode.steps, row])[:, columns]
    title = "own policy" if policy else "own action values"
    add_own(episode, title, columns if seats is not None else [episode.focal or 0], numbers, avail, alive, policy)


def add_searches(episode: Episode, batch: EpisodeBatch, row: int = 0) -> None:
    """The policy of the last search at every step, of the focal agent or of all agents that plan."""
    seats = list(range(len(episode.seats))) if episode.focal is None else [episode.focal]
    policy, avail, alive = (
        np.asarray(x[row])[: episode.steps][:, seats] for x in (batch["search"], batch.avail_actions, batch.alive)
    )
    add_own(episode, "policy of the search, for one sample of goals", seats, policy.astype(float), avail, alive, True)


def add_own(
    episode: Episode,
    title: str,
    seats: list[int],
    numbers: np.ndarray,
    avail: np.ndarray,
    alive: np.ndarray,
    policy: bool,
) -> None:
    values, taken = np.where(avail, numbers, np.nan), episode.actions[:, seats]
    episode.shown.append(Rows(title, seats, episode.action_names, values, alive, taken, policy, own=True))


def add_beliefs(episode: Episode, env: MultiAgentEnv, mac: Any, batch: EpisodeBatch, row: int = 0) -> None:
    """The beliefs at every step: one row per co-player, one column per goal."""
    names = [*(env.goal_names if mac.space is None else (f"g{i}" for i in range(mac.models.goals.n))), "none"]
    beliefs, alive = np.asarray(batch["belief"][row], float), np.asarray(batch.alive[row])
    steps, seats = episode.steps, [seat for seat in range(len(episode.seats)) if seat != episode.focal]
    title = "belief about each agent's goal" if episode.focal is None else "belief about each co-player's goal"
    episode.shown.append(Rows(title, seats, names, beliefs[:steps, seats], alive[:steps, seats]))

"""Replays: a GIF of one test episode, as the environment draws itself, with the step and the return so far.

Beside the board stands what the focal agent infers: the state of the episode nearest to ĝ_t and the one chosen in
hindsight (OMG), the predicted actions of the others beside those they took (naive, LIAM), or beliefs over goals (HOP).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from PIL import Image, ImageDraw

from omg.components.episode_buffer import EpisodeBatch, Field, FocalBatch, make_scheme, refine, time_first
from omg.controllers import BasicMAC, Controller, HopMAC
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.envs.grid import LINES, PAPER
from omg.evaluation.encounters import chosen_ahead, nearest_state
from omg.modules.vae import VAE
from omg.runners import PolicyGroup, VectorRunner
from omg.utils.settings import UserError

CAPTION = 18
"""Height of a line of text."""
SHOWN_SEATS = 8
LABEL = 16
"""Bars that are narrower have no names."""
TEXT, FRAME = (60, 60, 60), (20, 20, 20)
Panels = list[tuple[str, Any]]
"""Captions and pictures of one frame; the first is the board."""


def check_render(env: MultiAgentEnv) -> None:
    """Refuses an environment that cannot draw itself, before the run and not after it."""
    if type(env).render is MultiAgentEnv.render:
        raise UserError(f"{env.spec.name} cannot draw itself: run again without --save_replay.")


def save_replay(env: MultiAgentEnv, mac: Any, agent: Any, key: Array, path: Path) -> Path:
    """Plays one test episode of a team and writes it to `path`, with beliefs if the agents have them."""
    states, batch = play_episode(env, mac, agent, key, 1)
    panels = boards(env, states)
    add_beliefs(env, mac, panels, batch)
    return write_gif(framed(env, panels, batch, []), path)


def save_focal_replay(
    env: MultiAgentEnv,
    focal: Any,
    agent: Any,
    opponents: PolicyGroup,
    key: Array,
    path: Path,
    vae: VAE | None = None,
    names: tuple[str, str] = ("focal agent", "partner"),
) -> Path:
    """The agent in the first seat, the last member of a group of opponents in all others; `names` are theirs."""
    n = env.spec.n_agents
    member = jax.tree.map(lambda x: x[-1:], opponents.policies)
    mac = MultiModuleMAC(env.spec, focal, (0,), (Side(opponents.mac, tuple(range(1, n)), 1),))
    states, batch = play_episode(env, mac, TeamPolicies(agent, (member,)), key, n)
    panels = boards(env, states)
    if isinstance(focal, HopMAC):
        add_beliefs(env, focal, panels, batch)
    elif isinstance(focal, BasicMAC):
        focal_batch = refine(batch, n)
        if vae is not None:
            add_subgoals(focal, agent, panels, focal_batch, vae, key)
        add_predictions(env, focal, agent, panels, focal_batch)
    return write_gif(framed(env, panels, batch, [names[0], *[names[1]] * (n - 1)]), path)


def boards(env: MultiAgentEnv, states: list[Any]) -> list[Panels]:
    """The picture of every state, the first panel of each frame."""
    pictures = [env.render(state) for state in states]
    if any(picture is None for picture in pictures):
        raise UserError(f"{env.spec.name} cannot draw all of its states: run again without --save_replay.")
    return [[("", picture)] for picture in pictures]


# --- what is shown beside the board


def add_subgoals(focal: BasicMAC, agent: Any, panels: list[Panels], batch: FocalBatch, vae: VAE, key: Array) -> None:
    """The state nearest to ĝ_t, and the one that hindsight chooses."""
    pictures = [panel[0][1] for panel in panels]
    inferred, chosen = subgoal_steps(focal, agent, batch, vae, key)
    last = len(panels) - 1
    for t, panel in enumerate(panels[:-1]):
        panel.append(("inferred subgoal (nearest state)", pictures[min(int(inferred[t]), last)]))
        panel.append((f"hindsight choice (+{int(chosen[t])})", pictures[min(t + int(chosen[t]), last)]))
    panels[-1] += [("", pictures[-1]), ("", pictures[-1])]


def add_predictions(env: MultiAgentEnv, focal: BasicMAC, agent: Any, panels: list[Panels], batch: FocalBatch) -> None:
    """The predicted action probabilities of every other agent; the action that it then took is framed."""
    inferred = focal.infer_all(agent, focal.seen(batch), batch)
    predicted = focal.am.predicted_actions(agent, inferred)
    if predicted is None:
        return
    probabilities, alive = np.asarray(predicted[:, 0, 0]), np.asarray(time_first(batch.others_alive)[:, 0, 0])
    taken = np.asarray(time_first(batch.others_actions)[:, 0, 0])
    named = len(env.action_names) == env.spec.n_actions
    names = list(env.action_names) if named else [str(i) for i in range(env.spec.n_actions)]
    for t, panel in enumerate(panels):
        now = min(t, len(panels) - 2)
        picture = bars(env, probabilities[now], alive[now], names, panel[0][1].size, 1, taken[now])
        panel.append(("predicted next action (framed: taken)" if t == now else "", picture))


def add_beliefs(env: MultiAgentEnv, mac: Any, panels: list[Panels], batch: EpisodeBatch) -> None:
    """The beliefs at every step: one row of bars per agent, one bar per goal."""
    if not isinstance(mac, HopMAC):
        return
    names = [*(env.goal_names if mac.space is None else (f"g{i}" for i in range(mac.models.goals.n))), "none"]
    beliefs, alive = np.asarray(batch["belief"][0], float), np.asarray(batch.alive[0])
    for t, panel in enumerate(panels):
        now = min(t, len(beliefs) - 1)
        panel.append(("belief over goals, by agent", bars(env, beliefs[now], alive[now], names, panel[0][1].size)))


def subgoal_steps(
    focal: BasicMAC, agent: Any, batch: FocalBatch, vae: VAE, key: Array
) -> tuple[np.ndarray, np.ndarray]:
    """For the first seat's episode: the time step of the state nearest to ĝ_t, and how far ahead the choice lies."""
    seen = focal.seen(batch)
    am: Any = focal.am
    inferred, of_states = focal.infer_all(agent, seen, batch).embedding, am.latents(vae, seen, batch)
    nearest = nearest_state(am.as_state(inferred, of_states), of_states.mu, time_first(batch.filled))
    chosen = chosen_ahead(focal, agent, seen, inferred, of_states, batch, key)
    return np.asarray(nearest[:, 0, 0]), np.asarray(chosen[:, 0, 0])


def play_episode(
    env: MultiAgentEnv, mac: Controller, params: Any, key: Array, envs: int
) -> tuple[list[Any], EpisodeBatch]:
    """Test episodes: the states of the first one up to its end, and all of them as a batch."""
    scheme, groups = make_scheme(env.spec)
    if mac.plans:
        trained: Any = mac.trained if isinstance(mac, MultiModuleMAC) else mac
        scheme["belief"] = Field((trained.models.n_goals,), "float32", "agents")
    runner = VectorRunner(env, mac, scheme, groups, envs)
    played = jax.jit(lambda p, k: runner.play(p, jnp.int32(0), k, True, record=True))(params, key)
    assert played.batch is not None
    states, length = jax.device_get(played.states), int(played.stats.lengths[0])
    first = [jax.tree.map(lambda x, t=t: x[t, 0], states) for t in range(length + 1)]
    return first, played.batch.with_fields(agent_idx=jnp.arange(envs, dtype=jnp.int8)[:, None])


# --- drawing


def bars(
    env: MultiAgentEnv,
    rows: np.ndarray,
    alive: np.ndarray,
    names: list[str],
    size: tuple[int, int],
    first: int = 0,
    taken: np.ndarray | None = None,
) -> Image.Image:
    """One row of bars per agent, in its colour; `first` is the seat of the first row, the `taken` bars have a frame."""
    width, height = size
    panel = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(panel)
    rows = rows[:SHOWN_SEATS]
    row, column = height / len(rows), (width - 30) / len(names)
    gap, labelled = min(3, column / 4), column >= LABEL
    for i, row_values in enumerate(rows):
        bottom, seat = (i + 1) * row - 16, first + i
        own = colour_of(env, seat)
        draw.text((14, bottom - row / 3), str(seat + 1), fill=own, anchor="mm")
        for j, (name, probability) in enumerate(zip(names, row_values, strict=True)):
            left = 30 + j * column
            colour = own if alive[i] else LINES
            draw.rectangle([left + gap, bottom - probability * (row - 24), left + column - gap, bottom], fill=colour)
            if taken is not None and alive[i] and taken[i] == j:
                draw.rectangle([left, bottom - (row - 22), left + column, bottom + 1], outline=FRAME, width=2)
            if labelled:
                draw.text((left + column / 2, bottom + 7), name, fill=TEXT, anchor="mm")
    return panel


def colour_of(env: MultiAgentEnv, seat: int) -> tuple[int, int, int]:
    return env.seat_colours[seat % len(env.seat_colours)]


def framed(env: MultiAgentEnv, panels: list[Panels], batch: EpisodeBatch, legend: list[str]) -> list[Image.Image]:
    """Every frame: a line with the step and the return so far, the panels, and what the seats are."""
    reward = np.asarray(batch.reward[0], float)
    team = np.concatenate([[0.0], np.asarray(env.spec.team_reward(reward), float).cumsum()])
    own = np.concatenate([[0.0], reward[:, 0].cumsum()])
    frames = []
    for t, panel in enumerate(panels):
        title = f"step {t} of {len(panels) - 1}    return so far: {team[t]:.2f}"
        if legend and env.spec.game_type != "cooperative":
            title += f" (of the focal agent: {own[t]:.2f})"
        frames.append(side_by_side(env, panel, title, legend))
    return frames


def side_by_side(env: MultiAgentEnv, panels: Panels, title: str, legend: list[str]) -> Image.Image:
    width, height = panels[0][1].size
    captions = CAPTION * any(caption for caption, _ in panels)
    foot = CAPTION * len(set(legend))
    frame = Image.new("RGB", (max(len(panels) * (width + 6) - 6, 330), CAPTION + captions + height + foot), "white")
    draw = ImageDraw.Draw(frame)
    draw.text((4, CAPTION // 2), title, fill=TEXT, anchor="lm")
    for i, (caption, picture) in enumerate(panels):
        draw.text((i * (width + 6) + width // 2, CAPTION * 3 // 2), caption, fill=TEXT, anchor="mm")
        frame.paste(picture, (i * (width + 6), CAPTION + captions))
    for line, name in enumerate(dict.fromkeys(legend)):
        x, y = 4, CAPTION + captions + height + line * CAPTION + CAPTION // 2
        seats = [seat for seat, other in enumerate(legend) if other == name]
        for seat in seats[:SHOWN_SEATS]:
            draw.ellipse([x, y - 6, x + 12, y + 6], fill=colour_of(env, seat))
            draw.text((x + 6, y), str(seat + 1), fill="white", anchor="mm")
            x += 16
        draw.text((x + 2, y), ("… " if len(seats) > SHOWN_SEATS else "") + name, fill=TEXT, anchor="lm")
    return frame


def write_gif(frames: list[Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = [frame.quantize(32, method=Image.Quantize.FASTOCTREE) for frame in frames]
    hold = [160 if frames[0].width < 400 else 350] * (len(small) - 1) + [1200]
    small[0].save(path, save_all=True, append_images=small[1:], duration=hold, loop=0)
    return path

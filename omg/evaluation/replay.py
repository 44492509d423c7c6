"""Replays: a GIF of one test episode, as the environment draws itself.

An agent that infers subgoals has two more panels: the state of the episode nearest to the inferred ĝ_t, and the one
chosen in hindsight. An agent with beliefs over goals has them as bars beside the board.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from PIL import Image, ImageDraw

from omg.components.episode_buffer import EpisodeBatch, Field, make_scheme, refine, time_first
from omg.controllers import BasicMAC, Controller, HopMAC
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.envs.grid import COLOURS, LINES, PAPER
from omg.evaluation.encounters import chosen_ahead, nearest_state
from omg.modules.vae import VAE
from omg.runners import PolicyGroup, VectorRunner
from omg.utils.settings import UserError

CAPTION = 18
"""Height of the line above a panel."""


def check_render(env: MultiAgentEnv) -> None:
    """Refuses an environment that cannot draw itself, before the run and not after it."""
    if type(env).render is MultiAgentEnv.render:
        raise UserError(f"{env.spec.name} cannot draw itself: run again without --save_replay.")


def save_replay(env: MultiAgentEnv, mac: Any, agent: Any, key: Array, path: Path) -> Path:
    """Plays one greedy episode of a team and writes it to `path`, with beliefs if the agents have them."""
    states, batch = play_episode(env, mac, agent, key, 1)
    pictures = [picture for state in states if (picture := env.render(state))]
    return write_gif(with_beliefs(env, mac, pictures, batch), path)


def save_focal_replay(
    env: MultiAgentEnv,
    focal: Any,
    agent: Any,
    opponents: PolicyGroup,
    key: Array,
    path: Path,
    vae: VAE | None = None,
) -> Path:
    """The agent in the first seat, the last member of a group of opponents in all others."""
    n = env.spec.n_agents
    member = jax.tree.map(lambda x: x[-1:], opponents.policies)
    mac = MultiModuleMAC(env.spec, focal, (0,), (Side(opponents.mac, tuple(range(1, n)), 1),))
    states, batch = play_episode(env, mac, TeamPolicies(agent, (member,)), key, n)
    pictures = [env.render(state) for state in states]
    if isinstance(focal, HopMAC):
        return write_gif(with_beliefs(env, focal, pictures, batch), path)
    panels = [[("episode", picture)] for picture in pictures]
    if vae is not None:
        inferred, chosen = subgoal_steps(env, focal, agent, batch, vae, key)
        for t, panel in enumerate(panels):
            if t < len(panels) - 1:
                panel.append(("inferred subgoal (nearest state)", pictures[min(int(inferred[t]), len(pictures) - 1)]))
                panel.append(
                    (f"hindsight choice (+{int(chosen[t])})", pictures[min(t + int(chosen[t]), len(pictures) - 1)])
                )
            else:
                panel += [("", pictures[-1]), ("", pictures[-1])]
    return write_gif([side_by_side(panel) for panel in panels], path)


def subgoal_steps(
    env: MultiAgentEnv,
    focal: BasicMAC,
    agent: Any,
    batch: EpisodeBatch,
    vae: VAE,
    key: Array,
) -> tuple[np.ndarray, np.ndarray]:
    """For the first seat's episode: the time step of the state nearest to ĝ_t, and how far ahead the choice lies."""
    focal_batch = refine(batch, env.spec.n_agents)
    seen = focal.seen(focal_batch)
    inferred, latents = focal.infer_all(agent, seen, focal_batch).embedding, vae.encode(seen.s).mu
    nearest = nearest_state(inferred, latents, time_first(focal_batch.filled))
    chosen = chosen_ahead(focal, agent, seen, inferred, latents, focal_batch, key)
    return np.asarray(nearest[:, 0, 0]), np.asarray(chosen[:, 0, 0])


def play_episode(
    env: MultiAgentEnv, mac: Controller, params: Any, key: Array, envs: int
) -> tuple[list[Any], EpisodeBatch]:
    """Greedy episodes: the states of the first one up to its end, and all of them as a batch."""
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


def with_beliefs(env: MultiAgentEnv, mac: Any, pictures: list[Any], batch: EpisodeBatch) -> list[Any]:
    """Every frame with the beliefs at that time: one row of bars per agent, one bar per goal."""
    if not isinstance(mac, HopMAC):
        return pictures
    names = [*(env.goal_names if mac.space is None else (f"g{i}" for i in range(mac.models.goals.n))), "none"]
    beliefs, alive = np.asarray(batch["belief"][0], float), np.asarray(batch.alive[0])
    frames = []
    for t, picture in enumerate(pictures):
        now = min(t, len(beliefs) - 1)
        bars = belief_bars(beliefs[now], alive[now], names, picture.size)
        frames.append(side_by_side([("episode", picture), ("belief over goals, by agent", bars)]))
    return frames


def belief_bars(beliefs: np.ndarray, alive: np.ndarray, names: list[str], size: tuple[int, int]) -> Image.Image:
    width, height = size
    panel = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(panel)
    row, column = height / len(beliefs), (width - 30) / len(names)
    for i, belief in enumerate(beliefs):
        bottom = (i + 1) * row - 16
        draw.text((14, bottom - row / 3), str(i + 1), fill=COLOURS[i % len(COLOURS)], anchor="mm")
        for j, (name, probability) in enumerate(zip(names, belief, strict=True)):
            left = 30 + j * column
            colour = COLOURS[i % len(COLOURS)] if alive[i] else LINES
            draw.rectangle([left + 3, bottom - probability * (row - 24), left + column - 3, bottom], fill=colour)
            draw.text((left + column / 2, bottom + 7), name, fill=(90, 90, 90), anchor="mm")
    return panel


def side_by_side(panels: list[tuple[str, Any]]) -> Image.Image:
    width, height = panels[0][1].size
    frame = Image.new("RGB", (len(panels) * (width + 6) - 6, height + CAPTION), "white")
    draw = ImageDraw.Draw(frame)
    for i, (caption, picture) in enumerate(panels):
        draw.text((i * (width + 6) + width // 2, CAPTION // 2), caption, fill=(60, 60, 60), anchor="mm")
        frame.paste(picture, (i * (width + 6), CAPTION))
    return frame


def write_gif(frames: list[Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = [frame.quantize(32, method=Image.Quantize.FASTOCTREE) for frame in frames]
    hold = [160 if frames[0].width < 400 else 350] * (len(small) - 1) + [1200]
    small[0].save(path, save_all=True, append_images=small[1:], duration=hold, loop=0)
    return path

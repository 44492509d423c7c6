"""A picture of an episode: a GIF of one test game, frame by frame as the world draws itself.

Where the agent infers subgoals, two more panels: the state it thinks the others are after (the state of the episode
nearest to ĝ), and the one chosen in hindsight. Where it holds beliefs about goals, they stand beside the board as bars.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from PIL import Image, ImageDraw

from omg.components.episode_buffer import EpisodeBatch, Field, make_scheme, pack
from omg.components.focal_batch import refine
from omg.controllers import FocalMAC, HopMAC, MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.envs.grid import COLOURS, LINES, PAPER
from omg.evaluation.strangers import chosen_ahead, nearest_state
from omg.learners.subgoals import SubgoalSettings
from omg.modules.am.base import time_first
from omg.modules.vae import VAE
from omg.opponents.pool import Kind
from omg.utils.settings import UserError

CAPTION = 18
"""Height of the line above a panel."""


def check_picture(env: MultiAgentEnv) -> None:
    """Before long work, not after it."""
    if type(env).render is MultiAgentEnv.render:
        raise UserError(f"{env.spec.name} has no picture of itself: run again without --save_replay.")


def save_replay(env: MultiAgentEnv, mac: Any, agent: Any, key: Array, path: Path) -> Path:
    """Plays one greedy episode and writes it to `path`; where somebody holds beliefs, they stand beside it."""
    states, batch = play_episode(env, mac, agent, key, 1)
    pictures = [picture for state in states if (picture := env.render(state))]
    return write_gif(with_beliefs(env, mac, pictures, batch), path)


def save_focal_replay(
    env: MultiAgentEnv,
    focal: FocalMAC,
    agent: Any,
    opponents: Kind,
    key: Array,
    path: Path,
    vae: VAE | None,
    subgoals: SubgoalSettings,
) -> Path:
    """The agent in the first seat, the last member of a kind in all others."""
    n = env.spec.n_agents
    member = jax.tree.map(lambda x: x[-1:], opponents.policies)
    mac = MultiModuleMAC(env.spec, focal, (0,), (Side(opponents.mac, tuple(range(1, n)), 1),))
    states, batch = play_episode(env, mac, TeamPolicies(agent, (member,)), key, n)
    pictures = [env.render(state) for state in states]
    if isinstance(focal, HopMAC):
        return write_gif(with_beliefs(env, focal, pictures, batch), path)
    panels = [[("now", picture)] for picture in pictures]
    if vae is not None:
        inferred, chosen = subgoal_places(env, focal, agent, batch, vae, subgoals, key)
        for t, panel in enumerate(panels):
            if t < len(panels) - 1:
                panel.append(("thinks they are after", pictures[min(int(inferred[t]), len(pictures) - 1)]))
                panel.append(
                    (f"chosen in hindsight (+{int(chosen[t])})", pictures[min(t + int(chosen[t]), len(pictures) - 1)])
                )
            else:
                panel += [("", pictures[-1]), ("", pictures[-1])]
    return write_gif([side_by_side(panel) for panel in panels], path)


def subgoal_places(
    env: MultiAgentEnv,
    focal: FocalMAC,
    agent: Any,
    batch: EpisodeBatch,
    vae: VAE,
    subgoals: SubgoalSettings,
    key: Array,
) -> tuple[np.ndarray, np.ndarray]:
    """For the first seat's episode: where the state nearest to ĝ_t lies, and how far ahead hindsight chose."""
    slots = refine(batch, env.spec.n_agents)
    seen = focal.seen(slots)
    inferred, latents = focal.infer_all(agent, seen, slots).embedding, vae.encode(seen.s).mu
    nearest = nearest_state(inferred, latents, time_first(slots.filled))
    chosen = chosen_ahead(focal, agent, seen, inferred, latents, slots, subgoals, key)
    return np.asarray(nearest[:, 0, 0]), np.asarray(chosen[:, 0, 0])


def play_episode(env: MultiAgentEnv, mac: Any, agent: Any, key: Array, worlds: int) -> tuple[list[Any], EpisodeBatch]:
    """Some worlds to the end of their time: the first one's states up to its end, and all of them as episodes."""
    scheme, _ = make_scheme(env.spec)
    limit, plans = env.spec.episode_limit, getattr(mac, "plans", False)
    if plans:
        scheme["belief"] = Field((), "float32")

    def step(carry, k):
        world, seen, memory, running = carry
        looks = {"world": world} if plans else {}
        actions, memory = mac.select_actions(agent, seen, memory, jnp.int32(0), k, True, **looks)
        new, shown = jax.vmap(env.step)(world, actions, jax.random.split(k, worlds))
        done = {"actions": actions, "reward": shown.reward, "terminated": shown.terminated, "filled": running}
        if plans:
            memory, noted = mac.observe(agent, memory, seen, actions, new, shown, running)
            done["belief"] = noted["belief"]
        kept = {**done, "obs": seen.obs, "state": seen.state, "avail_actions": seen.avail_actions, "alive": seen.alive}
        return (new, shown, memory, running & ~shown.terminated), (world, kept)

    @jax.jit
    def play(key: Array):
        k_reset, k_play = jax.random.split(key)
        world, seen = jax.vmap(env.reset)(jax.random.split(k_reset, worlds))
        start = (world, seen, mac.init_memory(agent, worlds), jnp.ones(worlds, bool))
        return jax.lax.scan(step, start, jax.random.split(k_play, limit + 1))[1]

    states, kept = jax.device_get(play(key))
    kept["filled"] = kept["filled"] & (np.arange(limit + 1) < limit)[:, None]
    length = int(kept["filled"][:, 0].sum())
    data = {name: jnp.swapaxes(pack(jnp.asarray(value), scheme[name]), 0, 1) for name, value in kept.items()}
    data["agent_idx"] = jnp.arange(worlds, dtype=jnp.int8)[:, None]
    scales = tuple((name, f.scale) for name, f in scheme.items() if f.scale != 1.0)
    first = [jax.tree.map(lambda x, t=t: x[t, 0], states) for t in range(length + 1)]
    return first, EpisodeBatch(data, scales)


def with_beliefs(env: MultiAgentEnv, mac: Any, pictures: list[Any], batch: EpisodeBatch) -> list[Any]:
    """Every moment with the beliefs held then: one row of bars for each agent, one bar for each goal."""
    if not isinstance(mac, HopMAC):
        return pictures
    names = [*(env.goal_names if mac.space is None else (f"g{i}" for i in range(mac.goals.n))), "none"]
    beliefs, alive = np.asarray(batch["belief"][0], float), np.asarray(batch.alive[0])
    frames = []
    for t, picture in enumerate(pictures):
        now = min(t, len(beliefs) - 1)
        bars = belief_bars(beliefs[now], alive[now], names, picture.size)
        frames.append(side_by_side([("now", picture), ("what each is thought to be after", bars)]))
    return frames


def belief_bars(beliefs: np.ndarray, alive: np.ndarray, names: list[str], size: tuple[int, int]) -> Image.Image:
    width, height = size
    panel = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(panel)
    row, column = height / len(beliefs), (width - 30) / len(names)
    for i, belief in enumerate(beliefs):
        bottom = (i + 1) * row - 16
        draw.text((14, bottom - row / 3), str(i + 1), fill=COLOURS[i % len(COLOURS)], anchor="mm")
        for j, (name, chance) in enumerate(zip(names, belief, strict=True)):
            left = 30 + j * column
            colour = COLOURS[i % len(COLOURS)] if alive[i] else LINES
            draw.rectangle([left + 3, bottom - chance * (row - 24), left + column - 3, bottom], fill=colour)
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

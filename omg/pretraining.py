"""`omg pretrain`: lets the pool's training members play, and trains a VAE of the situations they meet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.components.episode_buffer import make_scheme
from omg.controllers import RuleMAC
from omg.envs import MultiAgentEnv, make
from omg.evaluation.figures import vae_pictures
from omg.learners.am_learner import AMLearner, VAESettings
from omg.opponents import random_action
from omg.opponents.pool import Kind
from omg.opponents.seating import open_pool
from omg.runners import VectorRunner
from omg.utils import checkpoints, device, vaes
from omg.utils.logging import ProgressReport, say, show
from omg.utils.settings import fill


def pretrain(config: Mapping[str, Any]) -> Path:
    """Collects, trains, saves; returns the VAE's folder."""
    for notice in device.setup(config.get("use_cuda"), bool(config.get("compilation_cache"))):
        say(notice, "yellow")
    env = make(config["env"], **(config["env_args"] or {}))
    pool = open_pool(config)
    card, settings = vaes.card_of(env.spec, config), fill(VAESettings, config)
    data = situations(env, pool.kinds(env.spec, pool.ids(["train"])), settings.vae_episodes, card["obs_is_state"])
    say(f"{len(data):,} situations of {card['size']} numbers from {len(pool.ids(['train']))} opponents")
    key = jax.random.key(config["seed"])
    curve: list[dict[str, float]] = []
    held_out, data = data[: len(data) // 10], data[len(data) // 10 :]
    with ProgressReport(f"VAE of {env.spec.name}", settings.vae_updates, unit="updates") as progress:

        def report(done: int, metrics: dict[str, float]) -> None:
            curve.append({"updates": done, **metrics})
            progress.update(done)

        vae = AMLearner(settings).train(vaes.make(card, key), jnp.asarray(data), jax.random.fold_in(key, 1), report)
    unseen = jnp.asarray(held_out)
    decoded = vae.decode(vae.encode(unseen).mu)
    error = ((vae.standard(decoded) - vae.standard(unseen)) ** 2).mean()
    variance = (vae.standard(unseen) ** 2).mean()
    summary = {"situations": len(data), "recons_loss": curve[-1]["recons_loss"], "kl_loss": curve[-1]["kl_loss"]}
    summary["held_out_unexplained"] = float(error / variance)
    what = "state" if card["obs_is_state"] else "obs"
    stamped = vaes.home(config) / f"{env.spec.name}__{what}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder = Path(str(config["run_dir"])) if config.get("run_dir") else stamped
    checkpoints.save(folder / "checkpoints", settings.vae_updates, {"vae": jax.device_get(vae)}, {"vae": card}, 1)
    (folder / "curve.json").write_text(json.dumps(curve, indent=1))
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    vae_pictures(folder, curve, np.asarray(unseen[:24]), np.asarray(decoded[:24]))
    show(summary)
    return folder


def situations(env: MultiAgentEnv, kinds: Sequence[Kind], episodes: int, of_state: bool) -> np.ndarray:
    """Every situation of some episodes of each member (a team of its own) and of random play, in random order."""
    rows = []
    anybody = Kind(RuleMAC(env.spec, random_action), jnp.zeros(1, jnp.int32), (-1,))
    for kind in (*kinds, anybody):
        n = kind.size
        runner = VectorRunner(env, kind.mac, *make_scheme(env.spec), episodes, n_seeds=n)
        play = jax.jit(lambda agents, keys, r=runner, n=n: r.run(agents, jnp.zeros(n, jnp.int32), keys, True)[0])
        batch = play(kind.policies, jax.random.split(jax.random.key(n), n))
        values = batch.unpacked("state" if of_state else "obs")
        # What was seen after the last step counts as well.
        real = np.asarray(batch["filled"])
        real = real | np.concatenate([np.zeros_like(real[..., :1]), real[..., :-1]], -1)
        rows.append(np.asarray(values)[real].reshape(-1, values.shape[-1]))
    everything = np.concatenate(rows)
    return np.random.default_rng(0).permutation(everything).astype(np.float32)

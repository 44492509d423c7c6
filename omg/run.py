"""Drives an experiment: train (fresh, from a saved model, or resumed) and evaluate."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from omg.components.episode_buffer import EpisodeBatch
from omg.drawing import draw_replay
from omg.evaluation.figures import learning_curve
from omg.evaluation.metrics import over_seeds, summarise
from omg.evaluation.replay import check_picture
from omg.loading import check_seeds, load_agent, load_parts, saved
from omg.parts import Parts, RunSettings, args_sanity_check, build
from omg.runners import HostRunner, WorldsFailed
from omg.training import T_ENV_MAX, Totals, TrainState
from omg.utils import checkpoints, device
from omg.utils.interrupts import Interrupts
from omg.utils.logging import Logger, ProgressReport, say, show
from omg.utils.settings import UserError, fill

SECONDS_PER_CALL = 1.0
"""Iterations per call of the compiled loop are chosen to take about this long: how soon Ctrl-C is heard."""


@dataclass
class Counters:
    """Where a run stands. Saved with every checkpoint, so that a resumed run tests, logs and saves on time."""

    t_env: int = 0
    episode: int = 0
    forgotten: int = 0
    updates: int = 0
    tests: int = 0
    next_test: int = 0
    next_log: int = 0
    next_save: int = 0
    steps: int = 0
    train_seconds: float = 0.0
    wall_seconds: float = 0.0


@dataclass
class Prepared:
    """A run whose every input has been checked, and which has written nothing yet."""

    parts: Parts
    folder: Path
    checkpoint: checkpoints.Checkpoint | None
    resume: bool


def prepare(config: Mapping[str, Any], folder: Path) -> Prepared:
    """Mends, checks and builds. Whatever is wrong with the input is found here, before a folder exists."""
    notices = device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    config, mended = args_sanity_check(config)
    for notice in notices + mended:
        say(notice, "yellow")
    run = fill(RunSettings, config)
    checkpoint = saved(run, folder)
    parts = build(config, saved=checkpoint)
    if run.save_replay:
        check_picture(parts.env)
    if checkpoint and not run.resume and not run.evaluate and checkpoint.t_env >= parts.settings.t_max:
        seats = parts.settings.t_max // run.t_max
        raise UserError(
            f"the model has already {checkpoint.t_env} steps: --t_max must be larger than {checkpoint.t_env // seats}."
        )
    if checkpoint is not None:
        check_seeds(checkpoint, parts)
        _ = load_agent(parts, checkpoint) if run.evaluate else load_parts(parts, checkpoint)
    return Prepared(parts, folder, checkpoint, run.resume)


class Training:
    """A run of training between two calls of the compiled loop: counts, logs, tests, saves."""

    def __init__(self, prepared: Prepared, logger: Logger):
        self.parts, self.folder, self.logger = prepared.parts, prepared.folder, logger
        self.run = prepared.parts.settings
        self.n_seeds = self.parts.loop.runner.n_seeds
        self.counters = Counters()
        self.state = self.parts.loop.init()
        self.latest: dict[str, Any] = {}
        self.each_latest: list[dict[str, float]] = []
        self.since_log: list[Totals] = []
        self.tested_at = -1
        self.diverged = False
        if prepared.checkpoint:
            self._restore(prepared.checkpoint, whole=prepared.resume)
        self.started = time.perf_counter() - self.counters.wall_seconds

    def _restore(self, checkpoint: checkpoints.Checkpoint, whole: bool) -> None:
        """`whole`: the same run goes on. Otherwise a new run starts from the model and its steps."""
        counters, loaded = checkpoint.manifest["counters"], load_parts(self.parts, checkpoint)
        updates = jnp.full_like(self.state.learner.updates, counters["updates"])
        learner = self.parts.learner.with_parts(self.state.learner, loaded)._replace(updates=updates)
        t_env = jnp.asarray(checkpoint.manifest["t_env_seeds"], jnp.int32).reshape(self.state.t_env.shape)
        replay = self.state.replay
        if not whole:
            self.counters.t_env = checkpoint.t_env
            self.counters.next_test = self.counters.next_log = self.counters.next_save = checkpoint.t_env
        else:
            self.counters = Counters(**counters)
            if "replay.safetensors" in checkpoint.manifest["files"]:
                replay = self._load_replay(checkpoint)
            else:
                # Without its episodes the buffer starts empty, and so does the count of what is in it.
                say("the checkpoint has no replay: collecting anew, so the run will differ from one never stopped.")
                self.counters.forgotten += self.counters.episode
                self.counters.episode = 0
        # Copied onto the device: what the compiled loop is given must be its own to overwrite.
        self.state = jax.tree.map(jnp.array, TrainState(learner, replay, t_env))

    def _load_replay(self, checkpoint: checkpoints.Checkpoint) -> EpisodeBatch:
        """The saved episodes, and zeros for the part of the ring that was still empty."""
        axis = 0 if self.n_seeds is None else 1
        kept = min(self.counters.episode, self.parts.loop.buffer.buffer_size)
        empty = self.state.replay
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], kept, *x.shape[axis + 1 :]), x.dtype), empty
        )
        saved = checkpoints.load_part(checkpoint, "replay", like)

        def pad(x: np.ndarray, full: Any) -> np.ndarray:
            after = [(0, n - m) for n, m in zip(full.shape, x.shape, strict=True)]
            return np.pad(x, after)

        return jax.tree.map(pad, saved, empty)

    def train(self) -> int | None:
        """Until `t_max` or a signal; returns the signal's number."""
        loop, run, counters = self.parts.loop, self.run, self.counters
        title = f"{run.name} on {self.parts.spec.name}"
        with Interrupts() as stop, ProgressReport(title, run.t_max, counters.t_env) as progress:
            # The first call compiles. It runs nothing, so that compiling is not counted as training.
            self.state, _ = loop.run(self.state, counters.episode, 0)
            seconds_each = 0.0
            while True:
                self._between_calls(progress)
                if counters.t_env >= run.t_max or stop.received:
                    break
                iterations = self._iterations(seconds_each)
                started = time.perf_counter()
                self.state, totals = loop.run(self.state, counters.episode, iterations)
                totals = jax.device_get(totals)
                elapsed = time.perf_counter() - started
                seconds_each = elapsed / iterations
                self._count(totals, iterations, elapsed)
                self._check_finite(totals)
                rate = counters.steps / max(counters.train_seconds, 1e-9)
                value = float(np.sum(totals.returns) / np.sum(totals.episodes))
                progress.update(counters.t_env, rate / run.seeds, value)
            if not stop.received and self.tested_at != counters.t_env:
                self._test()
                self._log_point()
            if run.save_model or stop.received:
                self.save()
        return stop.received

    def _iterations(self, seconds_each: float) -> int:
        """As many as surely end before the next event, and no more than about a second's worth."""
        events = [self.run.t_max, self.counters.next_test, self.counters.next_log]
        if self.run.save_model:
            events.append(self.counters.next_save)
        until = min(events) - self.counters.t_env
        paced = int(SECONDS_PER_CALL / seconds_each) if seconds_each else 1
        most = self.parts.loop.at_most or paced
        return max(1, min(until // self.parts.loop.steps_per_iteration, paced, most))

    def _count(self, totals: Totals, iterations: int, elapsed: float) -> None:
        counters = self.counters
        counters.steps += int(np.sum(totals.steps))
        counters.train_seconds += elapsed
        counters.episode += iterations * self.parts.loop.collected
        counters.updates += int(np.max(totals.updates))
        counters.t_env += int(np.sum(totals.steps)) // self.run.seeds
        self.since_log.append(totals)

    def _check_finite(self, totals: Totals) -> None:
        """A loss that is no longer a number: said once, and with `debug` the end of the run."""
        wrong = sorted(name for name, value in totals.metrics.items() if not np.isfinite(value).all())
        if wrong and self.run.debug:
            raise UserError(f"not a number by {self.counters.t_env} steps: {', '.join(wrong)}. The run ends here.")
        if wrong and not self.diverged:
            say(f"learning has diverged: {', '.join(wrong)} are not numbers. A smaller --lr may help.", "yellow")
        self.diverged = bool(wrong)

    def _between_calls(self, progress: ProgressReport) -> None:
        counters, run = self.counters, self.run
        tested = counters.t_env >= counters.next_test
        if tested:
            self._test()
            counters.next_test = _after(counters.t_env, run.test_interval)
        if tested or counters.t_env >= counters.next_log:
            self._log_point()
            progress.line()
            counters.next_log = _after(counters.t_env, run.log_interval)
        if run.save_model and counters.t_env >= counters.next_save:
            if counters.t_env:
                self.save()
            counters.next_save = _after(counters.t_env, run.save_model_interval)

    def _test(self) -> None:
        stats = self.parts.tester.play(self.parts.learner.acting(self.state.learner), self.counters.tests)
        self.counters.tests += 1
        self.tested_at = self.counters.t_env
        self.each_latest = summarise(self.parts.spec, stats, self.n_seeds)
        self.latest = over_seeds(self.each_latest)

    def _log_point(self) -> None:
        """One line: what training came to since the last point, and the newest test if there was one."""
        point: dict[str, Any] = {
            "episode": self.counters.episode + self.counters.forgotten,
            "updates": self.counters.updates,
        }
        if self.since_log:
            totals = jax.tree.map(lambda *x: np.sum(x, axis=0), *self.since_log)
            updates, episodes = np.maximum(totals.updates, 1), np.maximum(totals.episodes, 1)
            point["return_mean"] = float(np.mean(totals.returns / episodes))
            point["ep_length_mean"] = float(np.mean(totals.steps / episodes))
            point |= {name: float(np.mean(value / updates)) for name, value in totals.metrics.items()}
            point["epsilon"] = float(self.parts.mac.selector.epsilon(jnp.int32(min(self.counters.t_env, T_ENV_MAX))))
        self.since_log = []
        self.logger.log(self.counters.t_env, point | self.latest)
        self.latest = {}

    def save(self) -> None:
        run, counters = self.run, self.counters
        counters.wall_seconds = time.perf_counter() - self.started
        parts = self.parts.learner.parts(self.state.learner)
        if run.save_replay_buffer:
            kept = min(counters.episode, self.parts.loop.buffer.buffer_size)
            parts["replay"] = jax.tree.map(
                lambda x: x[:kept] if self.n_seeds is None else x[:, :kept], self.state.replay
            )
        manifest = {
            "counters": asdict(counters),
            "t_env_seeds": np.asarray(self.state.t_env).reshape(-1).tolist(),
            "seeds": self.parts.seeds,
            "config": self.parts.config,
        }
        checkpoints.save(
            self.folder / "checkpoints", counters.t_env, jax.device_get(parts), manifest, run.keep_checkpoints
        )

    def summary(self) -> dict[str, Any]:
        counters, run = self.counters, self.run
        counters.wall_seconds = time.perf_counter() - self.started
        summary = {
            "name": run.name,
            "env": self.parts.spec.name,
            "t_env": counters.t_env,
            "episodes": counters.episode + counters.forgotten,
            "updates": counters.updates,
            "seed": run.seed,
            **over_seeds(self.each_latest),
            "env_steps_per_second": counters.steps / max(counters.train_seconds, 1e-9),
            "wall_seconds": counters.wall_seconds,
            "device": device.describe(),
        }
        if isinstance(self.parts.loop.runner, HostRunner):
            summary["dropped_episodes"] = self.parts.loop.runner.dropped
        if run.seeds > 1:
            summary["seeds"] = [{"seed": s, **e} for s, e in zip(self.parts.seeds, self.each_latest, strict=True)]
        return summary


def run(_run: Any, prepared: Prepared, _log: Any) -> int:
    """A whole run under Sacred. Returns the exit status."""
    folder, parts = prepared.folder, prepared.parts
    say(f"{parts.settings.name} on {parts.spec.name}: {parts.spec.n_agents} agents, {device.describe()}, in {folder}")
    _log.debug("configuration: %s", json.dumps(parts.config))
    # Where it ran and that it was resumed are not part of the experiment: without them it can be run again elsewhere.
    experiment = parts.config | {"run_dir": None, "resume": False}
    (folder / "config.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False))
    resume_at = (
        prepared.checkpoint.t_env if prepared.resume and prepared.checkpoint else (-1 if prepared.resume else None)
    )
    with Logger(folder, parts.settings.use_tensorboard, _run, resume_at) as logger:
        training = Training(prepared, logger)
        try:
            stopped_by = training.train()
        except WorldsFailed:
            training.save()
            raise
        finally:
            if isinstance(parts.loop.runner, HostRunner):
                parts.loop.runner.close()
        if stopped_by is not None:
            say(f"stopped at {training.counters.t_env:,} steps. To go on: omg train --resume --run_dir={folder}")
            return 128 + stopped_by
        summary = training.summary()
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    learning_curve(folder)
    if parts.settings.save_replay:
        learner = training.state.learner
        draw_replay(parts, learner.params if parts.learner.focal else parts.learner.acting(learner), folder)
    show(summary)
    return 0


def evaluate(prepared: Prepared) -> int:
    """Tests a saved model and writes what came of it."""
    parts, checkpoint, folder = prepared.parts, prepared.checkpoint, prepared.folder
    assert checkpoint is not None
    agent = load_agent(parts, checkpoint)
    each = summarise(parts.spec, parts.tester.play(agent, 0), parts.loop.runner.n_seeds)
    summary = {"t_env": checkpoint.t_env, "seed": parts.settings.seed, "test_nepisode": parts.settings.test_nepisode}
    summary |= over_seeds(each)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    if parts.settings.save_replay:
        draw_replay(parts, agent, folder)
    show(summary)
    return 0


def _after(t_env: int, interval: int) -> int:
    """The next multiple of the interval."""
    return (t_env // interval + 1) * interval

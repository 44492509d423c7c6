"""Drives a training run between two calls of the compiled loop: counts, logs, tests, saves."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch
from omg.evaluation.metrics import by_seed, over_seeds, summarise
from omg.runners import EnvsFailed
from omg.training import hosts
from omg.training.loop import Totals, TrainingLoop, TrainState
from omg.training.restore import goes_on, load_learner
from omg.training.settings import RunSettings
from omg.utils import checkpoints, device
from omg.utils.interrupts import Interrupts
from omg.utils.logging import Logger, ProgressReport, compiling, say
from omg.utils.settings import UserError, fill_exactly

SECONDS_PER_CALL = 1.0
"""Iterations per call of the compiled loop are chosen to take about this long: the delay until Ctrl-C is handled."""


@dataclass
class Counters:
    """The progress of a run, saved with every checkpoint: a resumed run tests, logs and saves at the same steps."""

    t_env: int = 0
    episode: int = 0
    forgotten: int = 0
    """Episodes before a resume without a saved replay buffer."""
    updates: int = 0
    tests: int = 0
    next_test: int = 0
    next_log: int = 0
    next_save: int = 0
    steps: int = 0
    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    window: list[Any] = field(default_factory=list)
    """The leaves of `Totals` since the last logged point."""


class Trainer:
    def __init__(
        self,
        loop: TrainingLoop,
        run: RunSettings,
        config: dict[str, Any],
        folder: Path,
        logger: Logger,
        checkpoint: checkpoints.Checkpoint | None = None,
    ):
        """`checkpoint` is what the run starts from: its own one when it resumes, or another run's model."""
        self.loop, self.run, self.config, self.folder, self.logger = loop, run, config, folder, logger
        self.spec, self.n_seeds = loop.runner.env.spec, loop.n_seeds
        self.counters = Counters()
        self.state = loop.init()
        self.window = loop.no_totals()
        self.each_test: list[dict[str, float]] = []
        self.tested_at = -1
        self.diverged = False
        if checkpoint:
            self._restore(checkpoint, goes_on(run, checkpoint))
        self.started = time.perf_counter() - self.counters.wall_seconds

    # --- the run

    def train(self, stop: Interrupts | None = None) -> int | None:
        """Until `t_max` or a signal; returns the signal's number. `stop` may have been listening before."""
        loop, run, counters = self.loop, self.run, self.counters
        title = f"{run.name} on {run.env_config}"
        with stop or Interrupts() as stop, ProgressReport(title, run.t_max, counters.t_env) as progress:
            # The first call compiles. It runs nothing, so that compilation does not count as training.
            with compiling(title, progress):
                self.state, _ = loop.run(self.state, counters.episode, 0)
            seconds_each = 0.0
            while True:
                self._between_calls(progress)
                signalled = hosts.largest(stop.received or 0)
                if counters.t_env >= run.t_max or signalled:
                    break
                iterations = hosts.of_first(self._iterations(seconds_each))
                started = time.perf_counter()
                before = self.window
                self.state, window = loop.run(self.state, counters.episode, iterations, before)
                self.window = hosts.fetch(window)
                totals = jax.tree.map(np.subtract, self.window, before)
                elapsed = time.perf_counter() - started
                seconds_each = elapsed / iterations
                self._count(totals, iterations, elapsed)
                self._check_finite(totals)
                rate = counters.steps / max(counters.train_seconds, 1e-9)
                focal = None if totals.focal_returns is None else _mean(totals.focal_returns, totals.episodes)
                progress.update(counters.t_env, rate / run.seeds, _mean(totals.returns, totals.episodes), focal)
            if not signalled and self.tested_at != counters.t_env:
                self._log_point(self._test(progress))
            if run.save_model or signalled:
                self.save()
        return signalled or None

    def run_safely(self, stop: Interrupts | None = None) -> int | None:
        """`train`; when all environments fail the run is saved first, and environments are always closed."""
        try:
            return self.train(stop)
        except EnvsFailed:
            self.save()
            raise
        finally:
            if self.loop.runner.host:
                self.loop.runner.host.close()

    def _iterations(self, seconds_each: float) -> int:
        """As many as surely end before the next event, and no more than about a second's worth."""
        events = [self.run.t_max, self.counters.next_test, self.counters.next_log]
        if self.run.save_model:
            events.append(self.counters.next_save)
        until = min(events) - self.counters.t_env
        paced = int(SECONDS_PER_CALL / seconds_each) if seconds_each else 1
        return max(1, min(until // self.loop.steps_per_iteration, paced, self.loop.at_most or paced))

    def _count(self, totals: Totals, iterations: int, elapsed: float) -> None:
        counters = self.counters
        counters.steps += int(np.sum(totals.steps))
        counters.train_seconds += elapsed
        counters.episode += iterations * self.loop.collected
        counters.updates += int(np.max(totals.updates))
        counters.t_env += int(np.sum(totals.steps)) // self.run.seeds

    def _check_finite(self, totals: Totals) -> None:
        """A loss that is not finite is reported once; with `debug` the run ends."""
        wrong = sorted(name for name, value in totals.metrics.items() if not np.isfinite(value).all())
        if wrong and self.run.debug:
            raise UserError(f"not finite at {self.counters.t_env} steps: {', '.join(wrong)}. The run ends here.")
        if wrong and not self.diverged:
            say(f"learning has diverged: {', '.join(wrong)} are not finite. A smaller --lr may help.", "yellow")
        self.diverged = bool(wrong)

    def _between_calls(self, progress: ProgressReport) -> None:
        counters, run = self.counters, self.run
        due = counters.t_env >= counters.next_test
        test = self._test(progress) if due else {}
        if due:
            counters.next_test = _after(counters.t_env, run.test_interval)
        if due or counters.t_env >= counters.next_log:
            self._log_point(test)
            progress.line()
            counters.next_log = _after(counters.t_env, run.log_interval)
        if run.save_model and counters.t_env >= counters.next_save:
            counters.next_save = _after(counters.t_env, run.save_model_interval)
            if counters.t_env:
                self.save()

    def _test(self, progress: ProgressReport) -> dict[str, list[float]]:
        if self.loop.learner.mac.plans:
            # It compiles a program of its own, and searches more than training does.
            progress.note("testing…")

        def report(number: int, of: int) -> None:
            progress.status(f"testing: collection {number} of {of}")

        self.state, stats = self.loop.test(self.state, self.counters.tests, self.run.test_nepisode, report)
        progress.status(progress.text)
        self.counters.tests += 1
        self.tested_at = self.counters.t_env
        self.each_test = summarise(self.spec, stats, self.n_seeds)
        return by_seed(self.each_test)

    def _log_point(self, test: dict[str, list[float]]) -> None:
        """One point: means of training since the last point, and the newest test if there was one."""
        counters = self.counters
        window = jax.tree.map(lambda x: np.atleast_1d(np.asarray(x, np.float64)), self.window)
        point: dict[str, Any] = {"episode": counters.episode + counters.forgotten, "updates": counters.updates}
        point["seconds"] = round(time.perf_counter() - self.started, 2)
        if window.episodes.any():
            updates, episodes = np.maximum(window.updates, 1), np.maximum(window.episodes, 1)
            means = {"return_mean": window.returns / episodes, "ep_length_mean": window.steps / episodes}
            if window.focal_returns is not None:
                means["focal_return_mean"] = window.focal_returns / episodes
            means |= {name: value / updates for name, value in window.metrics.items()}
            point |= {name: value.tolist() for name, value in means.items()}
            point |= self.loop.learner.mac.exploration(min(counters.t_env, 2**31 - 1))
        self.window = self.loop.no_totals()
        self.logger.log(counters.t_env, point | test)

    # --- checkpoints

    def save(self) -> None:
        run, counters = self.run, self.counters
        counters.wall_seconds = time.perf_counter() - self.started
        counters.window = [np.asarray(x).tolist() for x in jax.tree.leaves(self.window)]
        files = hosts.fetch(self.loop.learner.files(self.state.learner))
        networks = [tree for name, tree in files.items() if name != "opt"]
        finite = all(np.isfinite(x).all() for x in jax.tree.leaves(networks))
        if run.save_replay_buffer and self.loop.replay_settings:
            kept = min(counters.episode, self.loop.buffer.buffer_size)
            files["replay"] = hosts.fetch(
                jax.tree.map(lambda x: x[:kept] if self.n_seeds is None else x[:, :kept], self.state.replay)
            )
        t_env = hosts.fetch(self.state.t_env)
        with hosts.all_or_none():
            if hosts.leads():
                self._write(files, finite, t_env)

    def _write(self, files: dict[str, Any], finite: bool, t_env: np.ndarray) -> None:
        run, counters = self.run, self.counters
        if not finite and (apart := checkpoints.set_apart(self.folder / "checkpoints", self.folder / "last_finite")):
            say(f"weights are not finite any more. The last checkpoint before is kept in {apart}.", "yellow")
        manifest = {
            "finite": finite,
            "counters": asdict(counters),
            "t_env_seeds": t_env.reshape(-1).tolist(),
            "seeds": self.loop.seeds,
            "config": self.config,
        }
        checkpoints.save(self.folder / "checkpoints", counters.t_env, files, manifest, run.keep_checkpoints)

    def _restore(self, checkpoint: checkpoints.Checkpoint, same_run: bool) -> None:
        """`same_run`: the run goes on. Otherwise a new run starts from the model and its steps."""
        files = load_learner(self.loop, checkpoint)
        counters, t_env, window = self._counted(checkpoint, same_run)
        updates = jnp.full_like(self.state.learner.updates, counters.updates if same_run else 0)
        learner = self.loop.learner.with_files(self.state.learner, files)._replace(updates=updates)
        replay = self.state.replay
        if not same_run:
            self.counters.t_env = checkpoint.t_env
            self.counters.next_test = self.counters.next_log = self.counters.next_save = checkpoint.t_env
        else:
            self.counters, self.window = counters, window
            if "replay.safetensors" in checkpoint.manifest["files"]:
                replay = self._load_replay(checkpoint)
            elif self.loop.replay_settings:
                # Without its episodes the buffer starts empty, and so does the count of its episodes.
                say("the checkpoint has no replay buffer: it is filled again, so the resume is not exact.")
                self.counters.forgotten += self.counters.episode
                self.counters.episode = 0
        state = TrainState(learner, replay, t_env)
        # Copied onto the device: the compiled loop overwrites its arguments.
        self.state = self.loop.place(state if hosts.several() else jax.tree.map(jnp.array, state))

    def _counted(self, checkpoint: checkpoints.Checkpoint, same_run: bool) -> tuple[Counters, Array, Totals]:
        """The counters, each seed's steps, and the sums since the last logged point."""
        manifest = checkpoint.manifest
        try:
            counters = fill_exactly(Counters, manifest["counters"], "counters.")
            if min(v for v in asdict(counters).values() if isinstance(v, int)) < 0:
                raise ValueError("negative counters")
            t_env = jnp.asarray(manifest["t_env_seeds"], jnp.int32).reshape(self.state.t_env.shape)
            leaves, structure = jax.tree.flatten(self.window)
            if not same_run:
                return counters, t_env, self.window
            saved = [np.asarray(x, old.dtype) for x, old in zip(counters.window, leaves, strict=True)]
            if any(x.shape != old.shape for x, old in zip(saved, leaves, strict=True)):
                raise ValueError("other shapes")
        except (KeyError, TypeError, ValueError, OverflowError, UserError) as error:
            raise UserError(f"{checkpoint.path} is no checkpoint of this program: its counters do not fit.") from error
        return counters, t_env, jax.tree.unflatten(structure, saved)

    def _load_replay(self, checkpoint: checkpoints.Checkpoint) -> EpisodeBatch:
        """The saved episodes, and zeros for the part of the ring that was still empty."""
        axis = 0 if self.n_seeds is None else 1
        kept = min(self.counters.episode, self.loop.buffer.buffer_size)
        empty = self.state.replay
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], kept, *x.shape[axis + 1 :]), x.dtype), empty
        )
        saved = checkpoints.load(checkpoint, "replay", like)

        def pad(x: np.ndarray, full: Any) -> np.ndarray:
            after = [(0, n - m) for n, m in zip(full.shape, x.shape, strict=True)]
            return np.pad(x, after)

        return jax.tree.map(pad, saved, empty)

    def summary(self) -> dict[str, Any]:
        counters, run = self.counters, self.run
        counters.wall_seconds = time.perf_counter() - self.started
        summary = {
            "name": run.name,
            "env": run.env_config,
            "t_env": counters.t_env,
            "episodes": counters.episode + counters.forgotten,
            "updates": counters.updates,
            "seed": run.seed,
            **over_seeds(self.each_test),
            "test_nepisode": run.test_nepisode,
            "env_steps_per_second": counters.steps / max(counters.train_seconds, 1e-9),
            "wall_seconds": counters.wall_seconds,
            "device": device.describe(),
        }
        if self.loop.runner.host:
            summary["dropped_episodes"] = self.loop.runner.host.dropped
        if run.seeds > 1:
            summary["seeds"] = [{"seed": s, **e} for s, e in zip(self.loop.seeds, self.each_test, strict=True)]
        return summary


def _mean(sums: np.ndarray, counts: np.ndarray) -> float:
    return float(np.sum(sums) / np.sum(counts))


def _after(t_env: int, interval: int) -> int:
    """The next multiple of the interval."""
    return (t_env // interval + 1) * interval

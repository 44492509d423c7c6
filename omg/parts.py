"""The parts of an experiment, built by name from its configuration, and the checks that come before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import jax

from omg import config as configuration
from omg import goal_learning
from omg.components.action_selectors import REGISTRY as selector_REGISTRY
from omg.components.episode_buffer import ReplayBuffer, make_scheme
from omg.controllers import AMONG_OTHERS, BasicMAC
from omg.controllers import REGISTRY as mac_REGISTRY
from omg.envs import REGISTRY as env_REGISTRY
from omg.envs import MultiAgentEnv, Spec
from omg.envs.host import HostWorld
from omg.evaluation.adaptation import AdaptSettings
from omg.host_training import HostLoop, HostTester
from omg.learners import REGISTRY as le_REGISTRY
from omg.learners import Learner
from omg.learners.am_learner import VAESettings
from omg.modules.agents import REGISTRY as agent_REGISTRY
from omg.modules.am import REGISTRY as am_REGISTRY
from omg.modules.critics import REGISTRY as critic_REGISTRY
from omg.modules.mixers import REGISTRY as mixer_REGISTRY
from omg.modules.vae import VAE
from omg.opponents.pool import Kind, PoolSettings
from omg.opponents.seating import SeatingSettings, seat
from omg.runners import REGISTRY as r_REGISTRY
from omg.runners import HostRunner, TeamRunner, focal_scheme
from omg.runners.workers import Recipe
from omg.testing import Tester
from omg.training import LoopSettings, TrainingLoop
from omg.utils import checkpoints, device, vaes
from omg.utils.logging import say
from omg.utils.settings import UserError, choose, fill


@dataclass(frozen=True)
class RunSettings:
    """What belongs to a run as a whole."""

    name: str = "iql"
    env: str = "foraging"
    env_args: dict | None = None
    runner: str = "vector"
    worker_timeout: float = 120.0
    bench_worlds: int = 256
    mac: str = "basic_mac"
    learner: str = "q_learner"
    seed: int = 1
    seeds: int = 1
    t_max: int = 200_000
    test_interval: int = 20_000
    test_nepisode: int = 64
    log_interval: int = 5_000
    local_results_path: str = "results"
    run_dir: str | None = None
    use_tensorboard: bool = True
    save_model: bool = True
    save_model_interval: int = 100_000
    keep_checkpoints: int = 3
    save_replay_buffer: bool = True
    save_replay: bool = False
    mongo_url: str | None = None
    checkpoint_path: str | None = None
    load_step: int = 0
    resume: bool = False
    evaluate: bool = False
    use_cuda: bool | None = None
    buffer_cpu_only: bool = False
    debug: bool = False
    compilation_cache: bool = True


def known_keys() -> set[str]:
    """Every key that some part reads."""
    keys = {
        field.name
        for cls in (RunSettings, LoopSettings, SeatingSettings, PoolSettings, VAESettings, AdaptSettings)
        for field in fields(cls)
    }
    registries: tuple[Mapping[str, Any], ...] = (mac_REGISTRY, le_REGISTRY, agent_REGISTRY, selector_REGISTRY)
    for registry in (*registries, am_REGISTRY, mixer_REGISTRY, critic_REGISTRY):
        for part in registry.values():
            if is_dataclass(part.Settings):
                keys |= {field.name for field in fields(part.Settings)}
    return keys


class Parts(NamedTuple):
    """An experiment ready to run: nothing large has been allocated yet."""

    config: dict[str, Any]
    settings: RunSettings
    env: MultiAgentEnv
    mac: BasicMAC
    learner: Learner
    loop: TrainingLoop
    tester: Tester

    @property
    def spec(self) -> Spec:
        return self.env.spec

    @property
    def seeds(self) -> list[int]:
        return list(range(self.settings.seed, self.settings.seed + self.settings.seeds))


def args_sanity_check(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Mends what can be mended and says so; refuses what cannot. Shapes are checked when the parts are built."""
    config, notices = _among_others(dict(config))
    run, loop = fill(RunSettings, config), fill(LoopSettings, config)
    positive = {
        "t_max": run.t_max,
        "seeds": run.seeds,
        "batch_size": loop.batch_size,
        "batch_size_run": loop.batch_size_run,
        "buffer_size": loop.buffer_size,
        "updates_per_iteration": loop.updates_per_iteration,
        "buffer_gib": loop.buffer_gib,
        "worker_timeout": run.worker_timeout,
        "length_buckets": loop.length_buckets,
        "test_nepisode": run.test_nepisode,
        "test_interval": run.test_interval,
        "log_interval": run.log_interval,
        "save_model_interval": run.save_model_interval,
        "keep_checkpoints": run.keep_checkpoints,
        "bench_worlds": run.bench_worlds,
    }
    for key, value in positive.items():
        if value <= 0:
            raise UserError(f"{key} is {value}; it must be {'above 0' if isinstance(value, float) else '1 or more'}.")
    if run.seed < 0 or run.seed + run.seeds > 2**31:
        raise UserError(f"seed is {run.seed}; seeds go from 0 to 2147483647.")
    if loop.batch_size > loop.buffer_size:
        raise UserError(
            f"batch_size ({loop.batch_size}) is larger than buffer_size ({loop.buffer_size}): an update could never "
            f"be sampled. Try --buffer_size={loop.batch_size} or more."
        )
    worlds = loop.batch_size_run
    if worlds > loop.buffer_size:
        raise UserError(
            f"batch_size_run ({worlds}) is larger than buffer_size ({loop.buffer_size}): the buffer could not hold "
            f"one collection. Try --buffer_size={worlds} or more."
        )
    if loop.buffer_size % worlds:
        config["buffer_size"] = loop.buffer_size // worlds * worlds
        notices.append(f"buffer_size {loop.buffer_size} → {config['buffer_size']}, a multiple of the {worlds} worlds.")
        if config["buffer_size"] < loop.batch_size:
            raise UserError(f"buffer_size, a multiple of batch_size_run ({worlds}), is below batch_size.")
    if run.test_nepisode % worlds:
        config["test_nepisode"] = max(1, run.test_nepisode // worlds) * worlds
        notices.append(
            f"test_nepisode {run.test_nepisode} → {config['test_nepisode']}, a multiple of the {worlds} worlds."
        )
    if run.buffer_cpu_only and jax.default_backend() != "cpu":
        config["buffer_cpu_only"] = False
        notices.append("buffer_cpu_only is off: replay is part of the compiled program and lives on its device.")
    return config, notices


def _among_others(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A pool or a mixed team makes of an independent learner one agent among others."""
    if not (config.get("multi_algs") or config.get("pool")) or config.get("mac") in AMONG_OTHERS.values():
        return config, []
    if config["learner"] in ("ppo_learner", "hop_learner") and config["mac"] in AMONG_OTHERS:
        return config | {"mac": AMONG_OTHERS[config["mac"]]}, []
    if config["learner"] != "q_learner":
        raise UserError(f"{config['name']} learns for a whole team and takes no pool: try iql, d3qn or ppo.")
    if config.get("mixer"):
        raise UserError(
            f"{config.get('train_alg') or config['name']} learns for a whole team, not for one agent among others. "
            "Independent learners can: iql, d3qn, ppo, and those with an agent model (iql_am, iql_liam, iql_omg, …)."
        )
    changed = {"learner": "q_learner_4am", "mac": "multi_module_mac"}
    return config | changed, ["one agent learns among others: learner q_learner → q_learner_4am."]


class StandIns(NamedTuple):
    """What measuring speed uses instead of a pool and a VAE on disk."""

    kinds: list[Kind]
    vae: VAE | None


def build(
    config: Mapping[str, Any], stand_ins: StandIns | None = None, saved: checkpoints.Checkpoint | None = None
) -> Parts:
    """Every part by its name. What does not fit together, or into memory, is refused here."""
    run, settings = fill(RunSettings, config), fill(LoopSettings, config)
    model = choose(am_REGISTRY, config.get("am_model", "none_am"), "am_model")
    make_runner: Any = choose(r_REGISTRY, run.runner, "runner")
    env = choose(env_REGISTRY, run.env, "world")(run.env_args or {})
    make_learner = choose(le_REGISTRY, run.learner, "learner")
    fill(make_learner.Settings, config)
    make_mac = choose(mac_REGISTRY, run.mac, "mac")
    among_others, plans = run.mac in AMONG_OTHERS.values(), getattr(make_mac, "plans", False)
    if isinstance(env, HostWorld) and not issubclass(make_runner, HostRunner):
        raise UserError(f"{run.env} runs outside the compiled program: set --runner=episode or --runner=parallel.")
    if among_others and issubclass(make_runner, HostRunner):
        raise UserError(f"one agent among others plays compiled worlds only: runner must be vector, not {run.runner}.")
    if among_others:
        algorithms = list(configuration.available("algs"))
        seating = seat(config, env.spec, algorithms, stand_ins.kinds if stand_ins else None)
    with_vae = dict(config)
    if model.needs_vae:
        with_vae["vae"] = stand_ins.vae if stand_ins else vaes.find(env.spec, config, saved)
    if plans and issubclass(make_runner, HostRunner):
        raise UserError(f"{run.name} plans in the compiled world: runner must be vector, not {run.runner}.")
    if plans and config.get("learned_goals"):
        mac: Any = make_mac(env, config, goal_learning.find(env, config, saved))
    else:
        mac = make_mac(env if plans else env.spec, config)
    if plans != make_learner.plans:
        raise UserError(f"{run.learner} and {run.mac} do not go together: hop_learner needs hop_mac, others do not.")
    learner = make_learner(env.spec, mac, with_vae)
    if learner.focal != among_others:
        only = "cannot learn" if among_others else "only learns"
        raise UserError(f"{run.learner} {only} for one agent among others (mac=multi_module_mac).")
    if learner.on_policy and settings.buffer_size != settings.batch_size_run:
        raise UserError(
            f"{run.learner} learns only from fresh episodes: buffer_size ({settings.buffer_size}) must equal "
            f"batch_size_run ({settings.batch_size_run})."
        )
    scheme, groups = make_scheme(env.spec)
    if plans:
        scheme |= mac.scheme
    n_seeds = None if run.seeds == 1 else run.seeds
    seeds = list(range(run.seed, run.seed + run.seeds))
    if among_others:
        n = env.spec.n_agents
        run = replace(run, t_max=run.t_max * n)
        blocks = fill(SeatingSettings, config).opponents_per_collection
        worlds = settings.batch_size_run
        runner: Any = TeamRunner(env, mac, *seating, scheme, groups, worlds, n_seeds, blocks)
        test_runner: Any = TeamRunner.of_everyone(env, mac, *seating, scheme, groups, run.test_nepisode, n_seeds)
        stored = scheme | focal_scheme(mac)
        buffer_size = max(settings.buffer_size // runner.batch_size, 1) * runner.batch_size
    elif issubclass(make_runner, HostRunner):
        if n_seeds is not None:
            raise UserError(f"runner: {run.runner} plays one seed at a time: set --seeds=1.")
        recipe = Recipe(run.env, dict(run.env_args or {}), run.seed)
        runner = make_runner(env, mac, scheme, groups, settings.batch_size_run, recipe, run.worker_timeout)
        test_runner, stored, buffer_size = runner, scheme, settings.buffer_size
    else:
        runner = make_runner(env, mac, scheme, groups, settings.batch_size_run, n_seeds)
        test_runner = make_runner(env, mac, scheme, groups, run.test_nepisode, n_seeds)
        stored, buffer_size = scheme, settings.buffer_size
    buffer = ReplayBuffer(stored, groups, buffer_size, env.spec.episode_limit + 1)
    buffer = _small_enough(buffer, settings.buffer_gib, runner.batch_size)
    _check_memory(buffer, run.seeds)
    host = isinstance(runner, HostRunner)
    loop = (HostLoop if host else TrainingLoop)(runner, buffer, learner, settings, seeds)
    if loop.sampled > buffer.buffer_size:
        raise UserError(
            f"an update takes {loop.sampled} episodes ({settings.batch_size} for each seat), and the buffer holds "
            f"{buffer.buffer_size}. Try --buffer_size={-(-loop.sampled // loop.collected) * loop.collected} or more."
        )
    tester: Any = HostTester(runner, loop.keys, run.test_nepisode) if host else Tester(test_runner, loop.keys)
    return Parts(dict(config), run, env, mac, learner, loop, tester)


def _small_enough(buffer: ReplayBuffer, gib: float, collected: int) -> ReplayBuffer:
    """The same buffer, or as many whole collections as fit into `buffer_gib`."""
    fits = int(gib * 2**30) // buffer.bytes_per_episode()
    if buffer.buffer_size <= fits:
        return buffer
    size = max(fits // collected, 1) * collected
    say(f"buffer_size {buffer.buffer_size} → {size}: what fits into {gib:g} GiB (buffer_gib).", "yellow")
    return ReplayBuffer(buffer.scheme, buffer.groups, size, buffer.max_seq_length)


def _check_memory(buffer: ReplayBuffer, seeds: int) -> None:
    each = buffer.bytes_per_episode() * seeds
    needed, free = each * buffer.buffer_size, device.free_memory()
    if needed > free:
        gib = 2**30
        raise UserError(
            f"the replay buffer does not fit: {buffer.buffer_size} episodes take {needed / gib:.1f} GiB and "
            f"{free / gib:.1f} GiB are free. The largest that fits is --buffer_size={int(0.8 * free // each)}."
        )

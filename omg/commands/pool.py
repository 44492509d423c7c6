"""`omg pool`: trains a pool of frozen opponents; `omg pool show` describes one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from omg import config as configuration
from omg.artifacts import pool_folder, scripted_split
from omg.build import Experiment, args_sanity_check, build, known_keys, make_env, resolve, settings_of
from omg.commands.common import configure
from omg.commands.stages import ENGINE, engine_of
from omg.components.episode_buffer import make_scheme
from omg.config import Command
from omg.controllers import REGISTRY as mac_REGISTRY
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv
from omg.envs.host import HostEnv
from omg.evaluation.diversity import disagreement
from omg.evaluation.metrics import summarise
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.opponents import zoo
from omg.opponents.generators import GENERATORS, Generator, GeneratorSettings, generate
from omg.opponents.pool import MANIFEST, SPLIT_NAMES, Member, Pool, PoolSettings
from omg.runners import VectorRunner
from omg.training.settings import RunSettings
from omg.utils.files import check_writable
from omg.utils.interrupts import Interrupts
from omg.utils.jobs import Engine, run_jobs
from omg.utils.lock import locked
from omg.utils.logging import ProgressReport, compiling, console, say
from omg.utils.settings import UserError, choose, fill, names_of, nearest

SUMMARY = """\
Trains frozen opponents: algorithms × seeds × stages of training, plus scripted policies, each in one split (train,
homologue: same algorithm and other seed, non_homologue: other algorithm). brdiv, lbrdiv and comedi among the algorithms
generate populations whose members differ on purpose (pool_population members each, by PPO; in one split as a whole).
Repeating the command keeps the algorithms that are finished. `omg pool show` prints the members and how often two
members choose different actions.

options:
  --jobs=1    number of algorithms that are trained at once, each in its own process with a log file
  --engine=ray  on a Ray cluster (--ray_address=auto, --gpus_per_run=0.25)"""
EXAMPLES = [
    "omg pool --env-config=foraging --t_max=200000",
    "omg pool show --env-config=foraging",
    "omg pool --env-config=foraging --pool_algs=[ppo,brdiv] --pool_test_algs=[qmix,comedi] --t_max=1000000",
    "omg pool --env-config=stag_hunt --pool_algs=[ppo] --pool_test_algs=[] --pool=results/hunters",
]
OWN = (PoolSettings, GeneratorSettings)
OWN_KEYS = [key for cls in OWN for key in names_of(cls)]
GENERATED_BY = "ppo"
"""The configuration of generated members."""
UNIFORM = 0.2
"""Below this mean disagreement a training pool is called too uniform."""


def settings(command: Command) -> list[type]:
    return [*OWN, *settings_of(resolve(configuration.load(command))[0])]


def main(command: Command) -> int:
    if command.words not in ([], ["show"]):
        raise UserError(f"omg pool makes a pool, omg pool show describes it; what is {' '.join(command.words)!r}?")
    engine = engine_of(command)
    if command.get("run_dir") is not None:
        raise UserError("the folder of a pool is --pool=DIR: leave --run_dir out.")
    command = replace(command, updates=[(key, value) for key, value in command.updates if key not in ENGINE])
    # --pool is the pool's own folder here, and other settings are those of its members.
    own = ("pool", *OWN_KEYS)
    mine = replace(command, updates=[(key, value) for key, value in command.updates if key.split(".")[0] in
                                     (*own, "env_args", "local_results_path", "t_max", "seed", "use_cuda",
                                      "compilation_cache")])  # fmt: skip
    config = configure(replace(mine, updates=[u for u in mine.updates if u[0] != "pool"]), OWN)
    config["pool"] = command.get("pool")
    if command.words:
        return show_pool(config)
    return make_pool(command, config, engine)


def make_pool(command: Command, config: dict[str, Any], engine: Engine) -> int:
    """Trains what is missing of the pool; what an earlier call finished stays. Returns the exit status."""
    env = make_env(config)
    pool_settings = check_settings(config, env)
    if zoo.in_zoo(config["pool"]):
        raise UserError("the zoo ships with the package and is not changed: choose another --pool=DIR.")
    folder = check_writable(pool_folder(config))
    with locked(folder):
        return fill_pool(command, config, engine, folder, env, pool_settings)


def fill_pool(
    command: Command,
    config: dict[str, Any],
    engine: Engine,
    folder: Path,
    env: MultiAgentEnv,
    pool_settings: PoolSettings,
) -> int:
    """What is missing of the pool in a folder."""
    generated = sorted({*GENERATORS} & {*(pool_settings.pool_algs or []), *(pool_settings.pool_test_algs or [])})
    recipe = asdict(pool_settings) | {"t_max": config["t_max"], "seed": config["seed"]}
    recipe |= asdict(fill(GeneratorSettings, config)) if generated else {}
    pool = Pool(folder, config["env"], dict(config["env_args"] or {}), (), recipe)
    if (folder / MANIFEST).exists():
        pool = Pool.load(folder)
        pool.check_env(config["env"], config["env_args"] or {})
        if pool.recipe != recipe:
            differ = sorted(key for key in {*recipe, *pool.recipe} if recipe.get(key) != pool.recipe.get(key))
            raise UserError(
                f"{folder} holds a pool made with other settings ({', '.join(differ)}): choose another --pool=DIR."
            )
    plan = [(alg, pool_settings.pool_train_seeds, "homologue") for alg in pool_settings.pool_algs or []]
    plan += [(alg, 0, "non_homologue") for alg in pool_settings.pool_test_algs or []]
    configs = {alg: member_config(command, alg, pool_settings, train) for alg, train, _ in plan}
    check_typed(command, config, configs)
    for policy, split in [(p, "train") for p in pool_settings.pool_rules or []] + [
        (p, "non_homologue") for p in pool_settings.pool_test_rules or []
    ]:
        if policy not in (m.name for m in pool.members):
            value = scripted_return(env, policy)
            pool.members.append(Member(policy, policy, split, return_mean=value))  # type: ignore[arg-type]
    pool.save()
    made = {m.algorithm for m in pool.members}
    missing = [part for part in plan if configs[part[0]] and part[0] not in made]
    if missing and (engine.ray or (engine.at_once > 1 and len(missing) > 1)):
        if status := train_apart(pool, command, configs, missing, engine):
            return status
        missing = []
    for alg, train_seeds, test_split in missing:
        member = configs[alg]
        assert member is not None
        if alg in GENERATORS:
            split = "train" if test_split == "homologue" else test_split
            generate_members(pool, alg, member, fill(GeneratorSettings, config), split)
        else:
            train_members(pool, alg, member, pool_settings, train_seeds, test_split)
        pool.save()
    print(folder)
    return 0


class Part(NamedTuple):
    """The command that trains one algorithm of a pool, into a folder of its own."""

    title: str
    command: Command
    after: tuple[str, ...] = ()

    def words(self) -> list[str]:
        return self.command.as_words()


def train_apart(
    pool: Pool, command: Command, configs: Mapping[str, Any], missing: Sequence[tuple[str, int, str]], engine: Engine
) -> int:
    """Several algorithms at once, each by an `omg pool` of its own; then all members are put into one pool."""
    if command.files:
        raise UserError("--jobs takes settings from the command line, not from a YAML file: leave one of them out.")
    home = pool.folder / "parts"
    home.mkdir(exist_ok=True)
    taken = ("pool", "pool_algs", "pool_test_algs", "pool_train_seeds", "pool_rules", "pool_test_rules")
    parts = []
    for alg, train_seeds, _ in missing:
        read = {*OWN_KEYS, "env_args", *(configs[alg] or {})} - {*taken}
        kept = [(key, value) for key, value in command.updates if key.split(".")[0] in read]
        own: list[tuple[str, Any]] = [
            ("pool_algs", [alg]),
            ("pool_test_algs", []),
            ("pool_rules", []),
            ("pool_test_rules", []),
        ]
        own += [("pool_train_seeds", train_seeds), ("pool", str(home / alg))]
        parts.append(Part(alg, replace(command, verb="pool", updates=[*kept, *own])))
    if status := run_jobs(parts, engine, home, {}, run=lambda part: 0):
        return status
    for alg, _, test_split in missing:
        for member in Pool.load(home / alg).members:
            pool.take(member, home / alg, member.split if test_split == "homologue" else "non_homologue")
        pool.save()
    shutil.rmtree(home)
    return 0


def check_settings(config: Mapping[str, Any], env: MultiAgentEnv) -> PoolSettings:
    s = fill(PoolSettings, config)
    if isinstance(env, HostEnv):
        raise UserError(
            f"a pool is trained in the compiled program, and {env.spec.name} runs in Python: train teams with omg "
            "train; the folder of a run is a pool (--pool=results/RUN)."
        )
    train, test = scripted_split(env.spec.name, s) if env.spec.name in scripted_REGISTRY else ([], [])
    if env.spec.name not in scripted_REGISTRY and (s.pool_rules or s.pool_test_rules):
        raise UserError(f"{env.spec.name} has no scripted policies: leave out --pool_rules and --pool_test_rules.")
    algs, test_algs = s.pool_algs or [], s.pool_test_algs or []
    for alg in (*algs, *test_algs):
        if alg in GENERATORS:
            continue
        choose(configuration.available("algs"), alg, "config")
        mac = configuration.load(Command(config=alg))["mac"]
        if not choose(mac_REGISTRY, mac, "mac").can_be_opponent:
            raise UserError(f"{alg} plans in the environment itself and cannot be a member of a pool: take ppo.")
        if mac == "multi_module_mac":
            raise UserError(f"{alg} learns among a pool and cannot be trained for one: take {alg.split('_')[0]}.")
    if both := sorted(set(algs) & set(test_algs)):
        raise UserError(f"{both[0]} cannot both train and be unseen: name it in one place.")
    stages = [float(stage) for stage in s.pool_stages or [1.0]]
    if not all(0 < stage <= 1 for stage in stages) or len(set(stages)) < len(stages):
        raise UserError(f"pool_stages are different fractions, above 0 and up to 1, not {s.pool_stages}.")
    return PoolSettings(algs, test_algs, s.pool_train_seeds, s.pool_test_seeds, sorted(stages), train, test)


def member_config(command: Command, alg: str, s: PoolSettings, train_seeds: int) -> dict[str, Any] | None:
    """The configuration of the seeds of one algorithm; None: no seeds are asked for."""
    generated = alg in GENERATORS
    seeds = 1 if generated else train_seeds + s.pool_test_seeds
    if not seeds:
        return None
    updates = [(key, value) for key, value in command.updates if key not in ("pool", *OWN_KEYS)]
    updates.append(("seeds", seeds))
    member = Command(
        config=GENERATED_BY if generated else alg, env_config=command.env_config, updates=updates, files=command.files
    )
    return args_sanity_check(resolve(configuration.load(member))[0])[0]


def check_typed(command: Command, config: dict[str, Any], configs: Mapping[str, dict[str, Any] | None]) -> None:
    """A setting that neither the pool nor any of its algorithms reads is refused."""
    read = {*config, *(key for member in configs.values() for key in member or {})}
    for key in command.typed_keys():
        if key not in read:
            hint = "" if key in known_keys() else nearest(key, known_keys())
            raise UserError(f"{key} has no effect here: none of {', '.join(configs) or 'the members'} reads it.{hint}")


def train_members(
    pool: Pool, alg: str, config: dict[str, Any], s: PoolSettings, train_seeds: int, test_split: str
) -> None:
    """All seeds of one algorithm in one program, stored at every stage."""
    experiment = build(config)
    run = experiment.settings
    for steps, params, stats in stages_of(experiment, s.pool_stages or [1.0], f"{alg}, {run.seeds} seeds"):
        returns = summarise(experiment.spec, stats, run.n_seeds)
        for i, seed in enumerate(run.all_seeds):
            network = params["agent"] if run.seeds == 1 else jax.tree.map(lambda x, i=i: x[i], params["agent"])
            split = "train" if i < train_seeds else test_split
            value = returns[i]["test_return_mean"]
            pool.add_network(network, config, algorithm=alg, split=split, seed=seed, steps=steps, return_mean=value)


def generate_members(pool: Pool, alg: str, config: dict[str, Any], s: GeneratorSettings, split: str) -> None:
    """A population whose members differ on purpose, stored when it is finished."""
    run = fill(RunSettings, config)
    generator, started = Generator(alg, make_env(config), config, s), time.perf_counter()
    title = f"{alg}, {s.pool_population} members"
    with Interrupts() as stop, ProgressReport(title, run.t_max, 0) as progress:

        def report(t_env: int, value: float) -> None:
            progress.update(t_env, t_env / (time.perf_counter() - started), value)
            if stop.received:
                say("finished algorithms are kept; this one starts again next time.")
                raise KeyboardInterrupt

        networks, returns = generate(generator, run.seed, run.t_max, report)
    same = np.eye(len(returns), dtype=bool)
    say(f"{title}: self-play {returns[same].mean():.3f}, cross-play {returns[~same].mean():.3f}")
    for i in range(len(returns)):
        network = jax.tree.map(lambda x, i=i: x[i], networks["agent"])
        about = {"algorithm": alg, "split": split, "seed": i + 1, "steps": run.t_max}
        pool.add_network(network, config, return_mean=float(returns[i, i]), **about)


def stages_of(experiment: Experiment, stages: Sequence[float], title: str) -> Iterator[tuple[int, Any, Any]]:
    """Trains, and stops at every stage: steps, networks and a test of them."""
    loop, run = experiment.loop, experiment.settings
    state, episode, t_env, started = loop.init(), 0, 0, time.perf_counter()
    with Interrupts() as stop, ProgressReport(title, run.t_max, 0) as progress:
        with compiling(title, progress):
            state, _ = loop.run(state, 0, 0)
        for stage in stages:
            while t_env < stage * run.t_max:
                iterations = max(1, min(int(stage * run.t_max - t_env) // loop.steps_per_iteration, 50))
                state, totals = loop.run(state, episode, iterations)
                totals = jax.device_get(totals)
                episode += iterations * loop.collected
                t_env = int(np.mean(np.asarray(state.t_env)))
                rate = t_env / (time.perf_counter() - started)
                progress.update(t_env, rate, float(np.sum(totals.returns) / np.sum(totals.episodes)))
                if stop.received:
                    say("finished algorithms are kept; this one starts again next time.")
                    raise KeyboardInterrupt
            progress.line()
            state, stats = loop.test(state, 0, run.test_nepisode)
            yield round(stage * run.t_max), experiment.learner.acting(state.learner), stats


def scripted_return(env: MultiAgentEnv, policy: str, episodes: int = 128) -> float:
    """The mean return of a team in which all agents follow a scripted policy."""
    mac = ScriptedMAC(env.spec, scripted_REGISTRY[env.spec.name][policy](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), episodes)
    stats = jax.jit(lambda key: runner.play(None, jnp.int32(0), key, True, keep=False).stats)(jax.random.key(0))
    return float(env.spec.team_reward(stats.agent_returns).mean())


def show_pool(config: dict[str, Any]) -> int:
    """The members, and how different they are."""
    pool = Pool.load(pool_folder(config))
    env = make_env({"env": pool.env, "env_args": pool.env_args})
    table = Table(title=f"{pool.folder}: {pool.env}")
    for column in ("split", "member", "seed", "steps", "return"):
        table.add_column(column)
    for m in sorted(pool.members, key=lambda m: (m.split != "train", m.split, m.name)):
        value = "" if m.return_mean is None else f"{m.return_mean:.3f}"
        table.add_row(m.split, m.name, str(m.seed or ""), str(m.steps or "scripted"), value)
    console.print(table)
    for split in SPLIT_NAMES:
        ids = pool.ids([split])
        if len(ids) > 1:
            pairs = disagreement(env, pool.groups(env.spec, ids))
            mean = float(pairs[np.triu_indices(len(ids), 1)].mean())
            print(f"{split}: {len(ids)} members, mean pairwise disagreement {mean:.3f}")
            if split == "train" and mean < UNIFORM:
                say(
                    f"the members of the training pool are very similar (below {UNIFORM}): add scripted policies or "
                    "algorithms.",
                    "yellow",
                )
    return 0

"""`omg pool`: trains a population of opponents and keeps it; `omg pool show` says what is in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from omg import config as configuration
from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import make_scheme
from omg.config import Command
from omg.controllers import RuleMAC
from omg.envs import MultiAgentEnv, make
from omg.evaluation.metrics import summarise
from omg.opponents import REGISTRY as rule_REGISTRY
from omg.opponents import SPLITS, random_action
from omg.opponents.pool import Kind, Member, Pool, PoolSettings
from omg.opponents.seating import pool_folder
from omg.parts import Parts, args_sanity_check, build, known_keys
from omg.runners import VectorRunner
from omg.utils import device
from omg.utils.interrupts import Interrupts
from omg.utils.logging import ProgressReport, console, say
from omg.utils.settings import UserError, choose, fill

UNIFORM = 0.2
"""A training pool whose members disagree less often than this teaches little."""


def make_pool(command: Command) -> Path:
    """Trains what is missing of the pool; what an earlier call finished stays."""
    config = configuration.load(command, known_keys())
    for notice in device.setup(config.get("use_cuda"), bool(config.get("compilation_cache"))):
        say(notice, "yellow")
    env = make(config["env"], **(config["env_args"] or {}))
    settings = _settings(config, env)
    folder = pool_folder(config)
    recipe = asdict(settings) | {"t_max": config["t_max"], "seed": config["seed"]}
    pool = Pool(folder, config["env"], dict(config["env_args"] or {}), (), recipe)
    if (folder / "pool.json").exists():
        pool = Pool.load(folder)
        if pool.recipe != recipe:
            raise UserError(f"{folder} holds a pool made with other settings: choose another place with --pool=DIR.")
        pool.check_world(config)
    rules = [(r, "train") for r in settings.pool_rules or []] + [
        (r, "non_homologue") for r in settings.pool_test_rules or []
    ]
    for rule, split in rules:
        if rule not in (m.name for m in pool.members):
            pool.members.append(Member(rule, rule, split, return_mean=_rule_return(env, rule)))  # type: ignore[arg-type]
    pool.save()
    plan = [(alg, settings.pool_train_seeds, "homologue") for alg in settings.pool_algs or []]
    plan += [(alg, 0, "non_homologue") for alg in settings.pool_test_algs or []]
    for alg, train_seeds, test_split in plan:
        if any(m.algorithm == alg for m in pool.members):
            continue
        _train_members(command, pool, alg, settings, train_seeds, test_split)
        pool.save()
    return folder


def _settings(config: Mapping[str, Any], env: MultiAgentEnv) -> PoolSettings:
    settings = fill(PoolSettings, config)
    split = SPLITS.get(env.spec.name)
    rules = settings.pool_rules if settings.pool_rules is not None else list(split.train if split else ())
    tests = settings.pool_test_rules if settings.pool_test_rules is not None else list(split.test if split else ())
    known = rule_REGISTRY.get(env.spec.name, {})
    for rule in (*rules, *tests):
        choose(known, rule, f"rule of {env.spec.name}")
    algs, test_algs = settings.pool_algs or [], settings.pool_test_algs or []
    for alg in (*algs, *test_algs):
        choose(configuration.available("algs"), alg, "config")
        mac = configuration.named("algs", alg).get("mac")
        if mac == "multi_module_mac":
            raise UserError(f"{alg} learns among a pool and cannot be trained for one: take {alg.split('_')[0]}.")
        if mac == "hop_mac":
            raise UserError(f"{alg} plans in the world itself and cannot be a member of a pool: take ppo.")
    both = sorted((set(algs) & set(test_algs)) | (set(rules) & set(tests)))
    if both:
        raise UserError(f"{both[0]} cannot both train and be unseen: name it in one place.")
    stages = [float(stage) for stage in settings.pool_stages or [1.0]]
    if settings.pool_train_seeds < 0 or settings.pool_test_seeds < 0:
        raise UserError("pool_train_seeds and pool_test_seeds are 0 or more.")
    if not all(0 < stage <= 1 for stage in stages) or len(set(stages)) < len(stages):
        raise UserError(
            f"pool_stages are parts of the training, each once, above 0 and up to 1, not {settings.pool_stages}."
        )
    return PoolSettings(
        algs, test_algs, settings.pool_train_seeds, settings.pool_test_seeds, sorted(stages), rules, tests
    )


def _train_members(
    command: Command, pool: Pool, alg: str, settings: PoolSettings, train_seeds: int, test_split: str
) -> None:
    """All seeds of one algorithm in one program, kept at every stage."""
    seeds = train_seeds + settings.pool_test_seeds
    if not seeds:
        return
    defaults = [("batch_size_run", 8), ("updates_per_iteration", 4), ("buffer_size", 1000), ("length_buckets", 2)]
    if alg in ("coma", "ppo"):
        defaults = []
    ours = Command(
        config=alg,
        env_config=command.env_config,
        updates=[*defaults, *command.updates, ("seeds", seeds), ("pool", None), ("multi_algs", False)],
        files=command.files,
    )
    config, _ = args_sanity_check(configuration.load(ours, known_keys()))
    parts = build(config)
    for steps, networks in _stages(parts, settings.pool_stages or [1.0], f"{alg}, {seeds} seeds"):
        returns = summarise(parts.spec, parts.tester.play(networks, 0), parts.loop.runner.n_seeds)
        for i, seed in enumerate(parts.seeds):
            policy = networks["agent"] if isinstance(networks, dict) else networks
            network = policy if seeds == 1 else jax.tree.map(lambda x, i=i: x[i], policy)
            split = "train" if i < train_seeds else test_split
            value = returns[i]["test_return_mean"]
            pool.add_network(network, config, algorithm=alg, split=split, seed=seed, steps=steps, return_mean=value)


def _stages(parts: Parts, stages: Sequence[float], title: str) -> Iterator[tuple[int, Any]]:
    """Trains, and stops to show the networks at every stage."""
    loop, t_max = parts.loop, parts.settings.t_max
    state, episode, t_env, started = loop.init(), 0, 0, time.perf_counter()
    with Interrupts() as stop, ProgressReport(title, t_max, 0) as progress:
        for stage in stages:
            while t_env < stage * t_max:
                iterations = max(1, min(int(stage * t_max - t_env) // loop.steps_per_iteration, 50))
                state, totals = loop.run(state, episode, iterations)
                totals = jax.device_get(totals)
                episode += iterations * loop.collected
                t_env = int(np.mean(np.asarray(state.t_env)))
                progress.update(
                    t_env,
                    t_env / (time.perf_counter() - started),
                    float(np.sum(totals.returns) / np.sum(totals.episodes)),
                )
                if stop.received:
                    say("the algorithms that were finished are kept; this one starts again next time.")
                    raise KeyboardInterrupt
            progress.line()
            yield round(stage * t_max), parts.learner.acting(state.learner)


def _rule_return(env: MultiAgentEnv, rule: str, episodes: int = 128) -> float:
    mac = RuleMAC(env.spec, rule_REGISTRY[env.spec.name][rule](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), episodes)
    _, stats = jax.jit(lambda key: runner.run(None, jnp.int32(0), key, True, keep=False))(jax.random.key(0))
    return float(env.spec.team_reward(stats.agent_returns).mean())


def disagreement(env: MultiAgentEnv, kinds: Sequence[Kind], worlds: int = 32) -> np.ndarray:
    """How often each pair of members would act differently in the same situations (of random play)."""
    mac = RuleMAC(env.spec, random_action)
    runner = VectorRunner(env, mac, *make_scheme(env.spec), worlds)
    batch, _ = jax.jit(lambda key: runner.run(None, jnp.int32(0), key, True))(jax.random.key(1))
    assert batch is not None
    chosen: dict[int, np.ndarray] = {}
    for kind in kinds:
        actions = np.asarray(jax.jit(jax.vmap(lambda p, kind=kind: _actions(kind, p, batch)))(kind.policies))
        chosen |= dict(zip(kind.ids, actions, strict=True))
    real = np.asarray(batch["filled"], bool)
    rows = np.stack([chosen[i][real] for i in sorted(chosen)])
    return (rows[:, None] != rows[None]).mean((2, 3))


def _actions(kind: Kind, policy: Any, batch: Any) -> jax.Array:
    """What one member would do at every step of these episodes, in every seat."""
    if not isinstance(kind.mac, RuleMAC):
        outputs = kind.mac.unroll(policy, batch).outputs
        return jnp.where(batch.avail_actions, outputs, UNAVAILABLE).argmax(-1)
    rules = [lambda *x, rule=rule: rule(*x).astype(jnp.int32) for rule in kind.mac.rules]
    shape = batch.actions.shape
    keys = jax.random.split(jax.random.key(2), shape)
    seats = jnp.broadcast_to(jnp.arange(shape[-1]), shape)

    def decide(*x):
        return jax.lax.switch(policy, rules, *x)

    return jax.vmap(jax.vmap(jax.vmap(decide)))(batch.obs, batch.avail_actions, seats, keys)


def show_pool(command: Command) -> int:
    """The members, and how different they are."""
    config = configuration.load(command, known_keys())
    device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    pool = Pool.load(pool_folder(config))
    env = make(pool.world, **pool.env_args)
    table = Table(title=f"{pool.folder}: {pool.world}")
    for column in ("split", "member", "algorithm", "seed", "steps", "return"):
        table.add_column(column)
    for m in sorted(pool.members, key=lambda m: (m.split != "train", m.split, m.name)):
        value = "" if m.return_mean is None else f"{m.return_mean:.3f}"
        table.add_row(m.split, m.name, m.algorithm, str(m.seed or ""), str(m.steps or "rule"), value)
    console.print(table)
    for split in ("train", "homologue", "non_homologue"):
        ids = pool.ids([split])
        if len(ids) > 1:
            pairs = disagreement(env, pool.kinds(env.spec, ids))
            mean = float(pairs[np.triu_indices(len(ids), 1)].mean())
            print(f"{split}: {len(ids)} members, mean pairwise disagreement {mean:.3f}")
            if split == "train" and mean < UNIFORM:
                say(
                    f"the training pool is too uniform to be worth much (below {UNIFORM}): add rules or algorithms.",
                    "yellow",
                )
    return 0

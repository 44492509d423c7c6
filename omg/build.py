"""The components of an experiment, built by name from its configuration, and the checks that come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from omg import artifacts
from omg import config as configuration
from omg.components.action_selectors import REGISTRY as selector_REGISTRY
from omg.components.episode_buffer import Groups, ReplayBuffer, Scheme, make_scheme
from omg.controllers import REGISTRY as mac_REGISTRY
from omg.controllers import WITH_PARTNERS, Controller
from omg.envs import REGISTRY as env_REGISTRY
from omg.envs import MultiAgentEnv, Spec, checked, trust
from omg.envs.host import HostEnv
from omg.evaluation.adaptation import AdaptSettings
from omg.learners import REGISTRY as le_REGISTRY
from omg.learners import Learner
from omg.learners.am_learner import VAESettings
from omg.modules.agents import REGISTRY as agent_REGISTRY
from omg.modules.am import REGISTRY as am_REGISTRY
from omg.modules.critics import REGISTRY as critic_REGISTRY
from omg.modules.mixers import REGISTRY as mixer_REGISTRY
from omg.opponents.generators import GeneratorSettings
from omg.opponents.pool import PoolSettings
from omg.opponents.scripted import rule_of
from omg.opponents.seating import SPLITS_OF, SeatingSettings, seat
from omg.runners import REGISTRY as r_REGISTRY
from omg.runners import HostRunner, PolicyGroup, TeamRunner, focal_scheme
from omg.runners.workers import Recipe
from omg.training import hosts
from omg.training.devices import mesh_of
from omg.training.host_loop import HostLoop
from omg.training.loop import TrainingLoop
from omg.training.settings import BenchSettings, LoopSettings, ReplaySettings, RunSettings
from omg.utils import checkpoints, device
from omg.utils.logging import say
from omg.utils.plugins import loaded
from omg.utils.settings import UserError, as_yaml, choose, fill, names_of, nearest

Config = dict[str, Any]


class Experiment(NamedTuple):
    """Everything a run consists of. Nothing large has been allocated yet."""

    config: Config
    settings: RunSettings
    env: MultiAgentEnv
    mac: Controller
    learner: Learner
    loop: TrainingLoop

    @property
    def spec(self) -> Spec:
        return self.env.spec


# --- settings


def component_settings() -> dict[str, type]:
    """Every dataclass of settings in the program, by the name of a component that reads it."""
    found: dict[str, type] = {
        "every run": RunSettings,
        "the training loop": LoopSettings,
        "replay (learners that are not on-policy)": ReplaySettings,
        "one agent with frozen partners (--pool, --multi_algs)": SeatingSettings,
        "omg pool and --pool=rules": PoolSettings,
        "omg pool with brdiv, lbrdiv or comedi": GeneratorSettings,
        "omg pretrain and omg collect": VAESettings,
        "omg adapt": AdaptSettings,
        "omg bench": BenchSettings,
    }
    registries: tuple[Mapping[str, Any], ...] = (
        mac_REGISTRY, agent_REGISTRY, selector_REGISTRY, am_REGISTRY, le_REGISTRY, mixer_REGISTRY, critic_REGISTRY,
    )  # fmt: skip
    for registry in registries:
        for name, component in registry.items():
            if issubclass(component, Controller):
                found[name] = component.settings_classes({})[0]
            else:
                found[name] = component.Settings
    return found


def known_keys(extra: Sequence[type] = ()) -> dict[str, str]:
    """Every setting of the program, and the component that reads it."""
    owners: dict[str, str] = {}
    for owner, cls in [*component_settings().items(), *((cls.__name__, cls) for cls in extra)]:
        for key in names_of(cls):
            owners.setdefault(key, owner)
    return owners


def settings_of(config: Mapping[str, Any]) -> list[type]:
    """The dataclasses of all settings that the components of a configuration read."""
    run = fill(RunSettings, config)
    learner = choose(le_REGISTRY, run.learner, "learner")
    classes = [RunSettings, LoopSettings, *([] if learner.on_policy else [ReplaySettings])]
    classes += choose(mac_REGISTRY, run.mac, "mac").settings_classes(config)
    classes += learner.settings_classes(config)
    if run.mac in WITH_PARTNERS.values():
        classes.append(SeatingSettings)
    if config.get("pool") == artifacts.SCRIPTED:
        classes.append(PoolSettings)
    return classes


def resolve(
    config: Mapping[str, Any], typed: Iterable[str] = (), extra: Sequence[type] = ()
) -> tuple[Config, list[str]]:
    """The configuration reduced to what the chosen components read, each value checked; and notices of what changed.

    `typed` are the keys that the user gave: one that no chosen component reads is an error. `extra` are the settings
    of the command itself.
    """
    owners, config = known_keys(extra), configuration.without_gone(config, typed)
    for key in config:
        if key not in owners:
            hint = nearest(key, owners) or " Settings: omg train --help. A component of your own needs --import MODULE."
            raise UserError(f"unknown key {key!r}.{hint}")
    config, notices = _with_partners(dict(config))
    classes = [*settings_of(config), *extra]
    known = {name for cls in classes for name in names_of(cls)}
    for key in typed:
        if key not in known:
            raise UserError(
                f"{key} has no effect here: it is a setting of {owners[key]}, which this command does not use."
            )
    resolved: Config = {}
    for cls in classes:
        resolved |= asdict(fill(cls, config))
    return resolved, notices


def _with_partners(config: Config) -> tuple[Config, list[str]]:
    """With a pool or a mixed team, an independent learner becomes one agent with frozen partners."""
    wanted = config.get("multi_algs") or config.get("pool")
    mac, name = config.get("mac", "basic_mac"), config.get("name")
    if not wanted or mac in WITH_PARTNERS.values():
        return config, []
    learner = choose(le_REGISTRY, config.get("learner", "q_learner"), "learner")
    team = config.get("train_alg") or name
    among = "Independent learners can: iql, d3qn, ppo, mappo, pqn, hop, and those with an agent model (iql_am, …)."
    if not (learner.can_be_focal or learner.with_partners):
        raise UserError(f"{team} learns for a whole team, not for one agent with frozen partners. {among}")
    if config.get("mixer") and not config.get("multi_algs"):
        raise UserError(
            f"{name} mixes the values of several agents: seat a group that learns together, as in --config=1any2{name} "
            f"--multi_algs (for three agents), or train one agent. {among}"
        )
    changed = {"mac": WITH_PARTNERS.get(str(mac), str(mac))}
    notices = []
    if learner.with_partners:
        changed["learner"] = learner.with_partners
        notices.append(f"one agent learns with frozen partners: learner {config['learner']} → {learner.with_partners}.")
    return config | changed, notices


def args_sanity_check(config: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """Adjusts settings that do not fit together and says so; refuses what cannot be adjusted."""
    config, notices = _sized_by_pool(dict(config)), list[str]()
    if choose(le_REGISTRY, config["learner"], "learner").on_policy:
        return config, notices
    replay, envs = fill(ReplaySettings, config), fill(LoopSettings, config).batch_size_run
    if replay.batch_size > replay.buffer_size:
        raise UserError(
            f"batch_size ({replay.batch_size}) is larger than buffer_size ({replay.buffer_size}): an update could "
            f"never be sampled. Try --buffer_size={replay.batch_size} or more."
        )
    if envs > replay.buffer_size:
        raise UserError(
            f"batch_size_run ({envs}) is larger than buffer_size ({replay.buffer_size}): the buffer could not hold "
            f"one collection. Try --buffer_size={envs} or more."
        )
    if replay.buffer_size % envs:
        config["buffer_size"] = replay.buffer_size // envs * envs
        notices.append(
            f"buffer_size {replay.buffer_size} → {config['buffer_size']}, a multiple of batch_size_run ({envs})."
        )
        if config["buffer_size"] < replay.batch_size:
            raise UserError(f"buffer_size, a multiple of batch_size_run ({envs}), is below batch_size.")
    return config, notices


def _sized_by_pool(config: Config) -> Config:
    """What the number of partners determines: the seeds of best responses, and the oracle's input."""
    if config.get("one_partner_each") and config["seeds"] == 1:
        config["seeds"] = max(len(artifacts.open_pool(config).ids(SPLITS_OF[config["partners"]])), 1)
    if config.get("identities") == 0:
        config["identities"] = len(artifacts.open_pool(config).members)
    return config


# --- components


class StandIns(NamedTuple):
    """What speed measurements use instead of a pool and pre-trained networks on disk."""

    groups: list[PolicyGroup]
    artifacts: dict[str, Any]


def make_env(config: Mapping[str, Any]) -> MultiAgentEnv:
    return checked(choose(env_REGISTRY, config["env"], "environment")(config.get("env_args") or {}))


def needs_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The pre-trained networks that a configuration needs, by name."""
    return choose(mac_REGISTRY, config.get("mac", "basic_mac"), "mac").needs_of(config)


def make_learner(
    env: MultiAgentEnv,
    config: Mapping[str, Any],
    saved: checkpoints.Checkpoint | None = None,
    stand_ins: StandIns | None = None,
    group: tuple[int, ...] = (0,),
) -> Learner:
    """Controller and learner of an experiment, with the pre-trained networks they need.

    `group` are the agents that learn together with frozen partners.
    """
    run = fill(RunSettings, config)
    make_mac, make = choose(mac_REGISTRY, run.mac, "mac"), choose(le_REGISTRY, run.learner, "learner")
    focal = run.mac in WITH_PARTNERS.values()
    if not (make.can_be_focal if focal else make.can_be_team):
        only = "cannot learn" if focal else "only learns"
        raise UserError(f"{run.learner} {only} for one agent with frozen partners (mac={WITH_PARTNERS['basic_mac']}).")
    if focal:
        # `t_max` counts the steps of one seat. The schedules of learners, selectors and agent models count all.
        config = {**config, "t_max": run.t_max * env.spec.n_agents}
    fill(make.Settings, config)
    needs = needs_of(config)
    found = {
        name: stand_ins.artifacts[name] if stand_ins else artifacts.find(name, env.spec, config, saved)
        for name in needs
    }
    mac = make_mac.create(env, config, found)
    if mac.own_networks and len(group) > 1:
        if config.get("mixer"):
            raise UserError("a group that learns together shares one network: set policy_model=rnn.")
        # One network for each seat learns in its seat: from the focal agent's steps, which sits in all of them.
        group = (0,)
    mac.group = group
    if name := config.get("rule_policy"):
        mac.rule = rule_of(env.spec, str(name))
    return make(env.spec, mac, config, focal, found)


def build(
    config: Mapping[str, Any], stand_ins: StandIns | None = None, saved: checkpoints.Checkpoint | None = None
) -> Experiment:
    """Every component by its name. What does not fit together, or into memory, is refused here."""
    run, settings = fill(RunSettings, config), fill(LoopSettings, config)
    make_runner: Any = choose(r_REGISTRY, run.runner, "runner")
    make_mac = choose(mac_REGISTRY, run.mac, "mac")
    host, focal = issubclass(make_runner, HostRunner), run.mac in WITH_PARTNERS.values()
    choose(env_REGISTRY, run.env, "environment")
    if host and make_mac.plans:
        raise UserError(f"{run.name} plans in the compiled environment: runner must be vector, not {run.runner}.")
    env = make_env(config)
    if isinstance(env, HostEnv) and not host:
        raise UserError(f"{run.env} runs outside the compiled program: set --runner=episode or --runner=parallel.")
    if host and (run.seeds > 1 or run.devices is not None or run.coordinator):
        raise UserError(f"runner: {run.runner} trains one seed at a time, on one device: no --seeds, no --devices.")
    hosts.check(run.coordinator, run.devices)
    if focal:
        # The seating comes first: a missing pool is the likeliest mistake.
        groups, algorithms = stand_ins.groups if stand_ins else None, list(configuration.available("algs"))
        seating = fill(SeatingSettings, config)
        seats = seat(seating, run.name, env.spec, algorithms, lambda: artifacts.open_pool(config), groups)
        partners = [group.size for opponents in seats.opponents for group in opponents.groups]
        if seating.one_partner_each and seating.multi_algs:
            raise UserError("one_partner_each has one agent and its partner in all other seats: leave multi_algs out.")
        if seating.one_partner_each and partners != [run.seeds]:
            raise UserError(
                f"one_partner_each trains one seed for every partner: there are {partners[0]}, not {run.seeds}. Leave "
                "seeds out."
            )
    learner = make_learner(env, config, saved, stand_ins, seats.offsets if focal else (0,))
    mac: Any = learner.mac
    if focal and mac.carried_size and len(seats.offsets) > 1:
        raise UserError("carry_memory is for one agent with frozen partners, not for a group that learns together.")
    mesh = None if host else mesh_of(run.devices, run.seeds, settings.batch_size_run)
    on_device = replace(run, seeds=run.seeds // mesh.size if mesh and run.n_seeds else run.seeds)
    scheme, axes = make_scheme(env.spec)
    scheme |= mac.scheme
    in_python = open_host(env, mac, config, scheme, axes) if host else None
    if focal:
        run = replace(run, t_max=run.t_max * env.spec.n_agents)
        runner: Any = TeamRunner(
            env, mac, *seats, scheme, axes, settings.batch_size_run, on_device.n_seeds,
            seating.opponents_per_collection, seating.one_partner_each, in_python,
        )  # fmt: skip
        scheme = scheme | focal_scheme(mac)
    else:
        runner = in_python or make_runner(env, mac, scheme, axes, settings.batch_size_run, on_device.n_seeds)
    replay = None if learner.on_policy else fill(ReplaySettings, config)
    stored = max(replay.buffer_size // runner.batch_size, 1) if replay else 1
    buffer = ReplayBuffer(scheme, axes, stored * runner.batch_size, env.spec.episode_limit + 1)
    if replay:
        buffer = _within_limit(buffer, replay.buffer_gib, runner.batch_size)
    _check_memory(buffer, on_device.seeds if device.separate() else hosts.share(run.seeds), replay is not None)
    loop = (HostLoop if host else TrainingLoop)(runner, buffer, learner, settings, run.all_seeds, replay, mesh)
    if replay and loop.sampled > buffer.buffer_size:
        raise UserError(
            f"an update takes {loop.sampled} episodes ({replay.batch_size} for each seat), and the buffer holds "
            f"{buffer.buffer_size}. Try --buffer_size={-(-loop.sampled // loop.collected) * loop.collected} or more."
        )
    return Experiment(dict(config), run, env, mac, learner, loop)


def open_host(
    env: MultiAgentEnv, mac: Controller, config: Mapping[str, Any], scheme: Scheme, axes: Groups
) -> HostRunner:
    """The runner of environments in Python, with its environments."""
    run, envs = fill(RunSettings, config), fill(LoopSettings, config).batch_size_run
    make: Any = choose(r_REGISTRY, run.runner, "runner")
    recipe = Recipe(run.env, dict(run.env_args), run.seed, loaded(), trust.allowed())
    return make(env, mac, scheme, axes, envs, recipe, run.worker_timeout)


def _within_limit(buffer: ReplayBuffer, gib: float, collected: int) -> ReplayBuffer:
    """The same buffer, or as many whole collections as fit into `buffer_gib`."""
    fits = int(gib * 2**30) // buffer.bytes_per_episode()
    if buffer.buffer_size <= fits:
        return buffer
    size = max(fits // collected, 1) * collected
    say(f"buffer_size {buffer.buffer_size} → {size}: the most that fits into {gib:g} GiB (buffer_gib).", "yellow")
    return ReplayBuffer(buffer.scheme, buffer.groups, size, buffer.max_seq_length)


def _check_memory(buffer: ReplayBuffer, seeds: int, replay: bool) -> None:
    each = buffer.bytes_per_episode() * seeds
    needed, free = each * buffer.buffer_size, device.free_memory()
    if needed > free:
        what, setting = ("replay buffer", "buffer_size") if replay else ("collection", "batch_size_run")
        raise UserError(
            f"the {what} does not fit: {buffer.buffer_size} episodes take {needed / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB are free. The largest that fits is --{setting}={int(0.8 * free // each)}."
        )


if __name__ == "__main__":
    (configuration.CONFIG_DIR / "default.yaml").write_text(as_yaml(component_settings()))

"""The Python API: train, load, act, play, evaluate, compare. The same code path as the command line.

import omg
run = omg.train("iql", env="foraging", seeds=3, t_max=20_000)
print(run.summary["test_return_mean"])
run.plot()
player = omg.load(run.path)
episodes = omg.rollout(player, episodes=10)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from omg import commands, config
from omg.build import make_env as make_env_of
from omg.commands.common import Player as SavedPlayer
from omg.commands.common import load_player, scripted_player
from omg.components.episode_buffer import make_scheme
from omg.config import Command
from omg.controllers import WITH_PARTNERS
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs import REGISTRY, MultiAgentEnv, Timestep, make
from omg.evaluation import runs as catalogue
from omg.evaluation.run import Picture, SavedRun
from omg.opponents import zoo
from omg.runners import VectorRunner
from omg.utils import checkpoints
from omg.utils.settings import UserError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Episodes", "Picture", "Player", "Run", "UserError", "evaluate", "load", "make_env", "pool", "pretrain", "rollout",
    "runs", "train",
]  # fmt: skip


class Run(SavedRun):
    """A run on disk: `path`, `config`, `summary`, `metrics`, `plot()`."""

    def player(self, seed: int = 0) -> Player:
        """The trained agent; `seed` counts the seeds of the run from 0."""
        return load(self.path, seed=seed)


def train(
    name: str = "iql",
    env: str = "foraging",
    *,
    run_dir: str | Path | None = None,
    env_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Trains an algorithm, as `omg train --config=NAME --env-config=ENV` does.

    Args:
        name: an algorithm or a team, as `--config`.
        env: an environment's configuration, as `--env-config`.
        run_dir: the folder of the run; by default a new one under `results`.
        env_args: settings of the environment, such as `{"grid_size": 10}`.
        **settings: any setting of `omg train --help`, such as `seeds=3`, `t_max=50_000`, `pool="rules"`.

    Returns:
        The finished run.

    Raises:
        UserError: a name or a setting is wrong; the message says what to write instead.
        KeyboardInterrupt: the run was stopped and saved; the same call with `run_dir` and `resume=True` continues it.
    """
    if settings.get("resume") and not run_dir:
        raise UserError("resume needs the run: add run_dir=….")
    results = Path(str(settings.get("local_results_path", "results")))
    label = f"{Path(name).stem}__{Path(env).stem}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder = Path(run_dir) if run_dir else results / label
    _run(Command("train", name, env, [*_updates(settings, env_args), ("run_dir", str(folder))]))
    return Run(folder)


def pool(
    env: str = "foraging", path: str | Path | None = None, *, env_args: Mapping[str, Any] | None = None, **settings: Any
) -> Path:
    """Trains frozen opponents, as `omg pool --env-config=ENV` does, and returns the pool's folder.

    Args:
        env: an environment's configuration, as `--env-config`.
        path: the pool's folder; by default `results/pools/ENV`, where `train` looks for it.
        env_args: settings of the environment; `train` needs the same.
        **settings: any setting of `omg pool --help`, such as `pool_algs=["iql"]`, `t_max=50_000`.
    """
    updates = [*_updates(settings, env_args), *([("pool", str(path))] if path else [])]
    return Path(_run(Command("pool", env_config=env, updates=updates)))


def pretrain(
    name: str = "iql_omg", env: str = "foraging", *, env_args: Mapping[str, Any] | None = None, **settings: Any
) -> Path:
    """Trains what an algorithm needs before it can learn, as `omg pretrain` does: OMG's VAE, HOP+'s goals.

    Returns its folder. `train` finds the newest one that fits.
    """
    return Path(_run(Command("pretrain", name, env, _updates(settings, env_args))))


def evaluate(path: str | Path, pool: str | Path | None = None, **settings: Any) -> dict[str, Any]:
    """Tests a saved model, as `omg evaluate` does: in its training setting, or with every member of a pool.

    Returns:
        The content of `summary.json`: with `pool` an entry for every partner.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(str(settings.pop("run_dir", None) or scratch))
        updates = [("checkpoint_path", str(path)), ("run_dir", str(folder)), *_updates(settings)]
        _run(Command("evaluate", updates=[*updates, *([("pool", str(pool))] if pool else [])]))
        return json.loads((folder / "summary.json").read_text())


def runs(folder: str | Path = "results") -> pd.DataFrame:
    """The runs in a folder, one row each: path, algorithm, environment, seed, state, steps, returns, seconds."""
    import pandas as pd

    columns = list(catalogue.Record("").row())
    return pd.DataFrame([record.row() for record in catalogue.records(Path(folder))], columns=columns)


def make_env(env: str = "foraging", **env_args: Any) -> MultiAgentEnv:
    """An environment by the name of its configuration, with settings: two pure functions and a spec."""
    if env in REGISTRY and env not in config.available("envs"):
        return make(env, **env_args)
    return make_env_of(
        config.load(Command(env_config=env, updates=[(f"env_args.{k}", v) for k, v in env_args.items()]))
    )


# --- agents


class Player:
    """A saved agent (or a scripted policy) that acts.

    A team's model acts for all agents, a model that was trained among frozen partners for one of them.
    """

    def __init__(self, saved: SavedPlayer, env: MultiAgentEnv, seed: int = 0):
        if not 0 <= seed < len(saved.params):
            raise UserError(f"{saved.name} has {len(saved.params)} seeds: seed is one of 0 to {len(saved.params) - 1}.")
        self.name, self.config, self.env = saved.name, saved.config, env
        self.mac, self.params = saved.mac, saved.params[seed]
        self.alone = saved.config.get("mac") in WITH_PARTNERS.values()
        """Whether it was trained as one agent among others."""
        if len(getattr(self.mac, "group", (0,))) > 1:
            raise UserError(f"{saved.name} is a group that learned among others: test it with omg evaluate --pool.")
        self._steps = 0
        self._act = jax.jit(self._select, static_argnames="test_mode")

    def memory(self, seats: int | None = None) -> Any:
        """The memory before the first step of an episode."""
        return self.mac.init_memory(self.params, 1, seats or (1 if self.alone else self.env.spec.n_agents))

    def act(
        self,
        obs: Any,
        memory: Any = None,
        *,
        avail_actions: Any = None,
        state: Any = None,
        seats: Sequence[int] | None = None,
        key: Any = None,
        test_mode: bool = True,
    ) -> tuple[np.ndarray, Any]:
        """One step of one episode.

        Args:
            obs: observations `[seat, obs_size]`, or a `Timestep` of the environment, of which the seats' part is taken.
            memory: what the last call returned; None at the start of an episode.
            avail_actions: `[seat, n_actions]`; by default all.
            state: the global state `[state_size]`, for agents that see it (`obs_is_state`).
            seats: the seats that act; by default all of a team, or the first one.
            key: a JAX key for policies that sample; by default each step of a player has another one.
            test_mode: False explores as in training.

        Returns:
            Actions `[seat]` and the new memory.
        """
        if self.mac.plans:
            raise UserError(f"{self.name} plans in the environment itself: play it with omg.rollout.")
        spec = self.env.spec
        own = list(seats) if seats is not None else [0] if self.alone else list(range(spec.n_agents))
        if not all(0 <= seat < spec.n_agents for seat in own):
            raise UserError(f"seats are {own}; {spec.name} has the seats 0 to {spec.n_agents - 1}.")
        if isinstance(obs, Timestep):
            avail_actions, state, obs = obs.avail_actions[jnp.asarray(own)], obs.state, obs.obs[jnp.asarray(own)]
        obs = jnp.asarray(obs, jnp.float32)
        if obs.shape != (len(own), spec.obs_size):
            raise UserError(f"obs has the shape {obs.shape}; for seats {own} it is ({len(own)}, {spec.obs_size}).")
        if state is None and getattr(self.mac, "obs_is_state", False):
            raise UserError(f"{self.name} sees the global state: pass state=…, or the whole Timestep.")
        every = jnp.ones((len(own), spec.n_actions), bool)
        avail = every if avail_actions is None else jnp.asarray(avail_actions).astype(bool)
        state = jnp.zeros(spec.state_size) if state is None else jnp.asarray(state, jnp.float32)
        memory = self.memory(len(own)) if memory is None else memory
        if key is None:
            self._steps += 1
            key = jax.random.fold_in(jax.random.key(0), self._steps)
        actions, memory = self._act(self.params, obs, avail, state, memory, jnp.asarray(own), key, test_mode=test_mode)
        return np.asarray(actions), memory

    def _select(
        self, params: Any, obs: Any, avail: Any, state: Any, memory: Any, seats: Any, key: Any, test_mode: bool
    ) -> tuple[Any, Any]:
        n = obs.shape[0]
        seen = Timestep(obs, state, avail, jnp.zeros(n), jnp.zeros((), bool), jnp.ones(n, bool), {})
        batched = jax.tree.map(lambda x: x[None], seen)
        actions, memory = self.mac.select_actions(params, batched, memory, jnp.int32(0), key, test_mode, seats)
        return actions[0], memory

    def __repr__(self) -> str:
        return f"Player({self.name} on {self.env.spec.name})"


def load(path: str | Path, *, step: int = 0, seed: int = 0, env: str | MultiAgentEnv | None = None) -> Player:
    """A saved agent: the folder of a run, or `zoo:TASK/METHOD`. With `env` also the name of a scripted policy.

    Args:
        path: the run.
        step: the checkpoint that is nearest to this number of steps; 0: the newest.
        seed: which of the run's seeds, counted from 0.
        env: the environment to play in, or its name; by default the one it was trained in.
    """
    env = make_env(env) if isinstance(env, str) else env
    if env is not None and not zoo.in_zoo(path) and not Path(path).exists():
        return Player(scripted_player(env, str(path)), env)
    found = checkpoints.find_model(zoo.agent_folder(str(path)) if zoo.in_zoo(path) else Path(path), step)
    env = env or make_env_of(found.manifest["config"])
    return Player(load_player(found, env), env, seed)


class Episodes(NamedTuple):
    """Whole episodes, padded to the longest; `filled` marks the steps that were played."""

    obs: np.ndarray
    """`[episode, step + 1, agent, obs_size]`."""
    state: np.ndarray
    """`[episode, step + 1, state_size]`."""
    actions: np.ndarray
    """`[episode, step, agent]`."""
    reward: np.ndarray
    """`[episode, step, agent]`."""
    filled: np.ndarray
    """`[episode, step]`."""
    returns: np.ndarray
    """Of every agent, `[episode, agent]`."""


def rollout(
    players: Player | Sequence[Player], env: str | MultiAgentEnv | None = None, episodes: int = 10, seed: int = 0
) -> Episodes:
    """Plays test episodes in one compiled program.

    Args:
        players: one team, or a player for every seat. Of players that were trained among partners, each acts for its
            own seat.
        env: an environment or its name; by default that of the first player.
        episodes: how many.
        seed: of the environment and of policies that sample.
    """
    if episodes < 1:
        raise UserError(f"episodes is {episodes}; it must be 1 or more.")
    if not isinstance(players, Player) and not players:
        raise UserError("rollout needs a player for every seat.")
    first = players if isinstance(players, Player) else players[0]
    env = first.env if env is None else make_env(env) if isinstance(env, str) else env
    n = env.spec.n_agents
    _check_fits([first] if isinstance(players, Player) else players, env)
    if isinstance(players, Player) and (not players.alone or players.mac.plans):
        mac, params = players.mac, players.params
    else:
        team = [players] * n if isinstance(players, Player) else list(players)
        if len(team) != n:
            raise UserError(f"{env.spec.name} has {n} agents; {len(team)} players were given.")
        if late := next((player for player in team[1:] if player.mac.plans), None):
            raise UserError(f"{late.name} plans in the environment itself: it takes the first seat, or all of them.")
        sides = tuple(Side(player.mac, (seat,), 1) for seat, player in enumerate(team) if seat)
        mac = MultiModuleMAC(env.spec, team[0].mac, (0,), sides)
        others = tuple(jax.tree.map(lambda x: jnp.asarray(x)[None], player.params) for player in team[1:])
        params = TeamPolicies(team[0].params, others)
    # Mixed teams are played with the first player in every seat in turn; the first rows have it in the first seat.
    batch_size = n * episodes if isinstance(mac, MultiModuleMAC) else episodes
    runner = VectorRunner(env, mac, *make_scheme(env.spec), batch_size)
    played = jax.jit(lambda p, k: runner.play(p, jnp.int32(0), k, True))(params, jax.random.key(seed))
    batch, stats = played.batch, played.stats
    assert batch is not None
    steps = int(np.max(stats.lengths[:episodes]))
    obs, state = (np.asarray(x)[:episodes, : steps + 1] for x in (batch.obs, batch.state))
    actions, reward, filled = (np.asarray(x)[:episodes, :steps] for x in (batch.actions, batch.reward, batch.filled))
    return Episodes(obs, state, actions, reward, filled, np.asarray(stats.agent_returns)[:episodes])


def _check_fits(players: Sequence[Player], env: MultiAgentEnv) -> None:
    """An agent plays in environments with the sizes of the one it was trained in."""
    for player in players:
        own, other = player.env.spec, env.spec
        for name in ("n_agents", "n_actions", "obs_size"):
            if getattr(own, name) != getattr(other, name):
                raise UserError(
                    f"{player.name} was made for {own.name} with {name} {getattr(own, name)}, and here it is "
                    f"{getattr(other, name)}. Leave env out to play where it was trained."
                )


# --- the command line's code path


def _updates(settings: Mapping[str, Any], env_args: Mapping[str, Any] | None = None) -> list[tuple[str, Any]]:
    """Keyword arguments as settings: paths as text, NumPy's numbers as Python's."""
    inner = {f"env_args.{key}": value for key, value in (env_args or {}).items()}
    return [(key, _plain(value)) for key, value in {**settings, **inner}.items()]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def _run(command: Command) -> str:
    """A command in this process; the last line that it prints on stdout, its folder."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = commands.run(command)
    if status in (130, 143):
        raise KeyboardInterrupt
    if status:
        raise UserError(f"omg {command.verb} ended with status {status}.")
    return printed.getvalue().strip().rpartition("\n")[2]

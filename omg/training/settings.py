"""The settings of a run and of its training loop."""

from __future__ import annotations

from dataclasses import dataclass

from omg.utils.settings import T_MAX_HELP, UserError, setting


@dataclass(frozen=True)
class RunSettings:
    name: str = setting("iql", "name of the experiment, shown in folders and figures")
    env: str = setting("foraging", "environment (omg list)")
    env_args: dict = setting({}, "settings of the environment")
    env_config: str = setting("foraging", "name of the environment's configuration; set by --env-config")
    preset: str | None = setting(
        None, "defaults of another program: pymarl; an environment's tuned settings are then not used"
    )
    runner: str = setting("vector", "runner: vector (compiled), episode (one in Python) or parallel (one process each)")
    worker_timeout: float = setting(
        120.0, "runner parallel: seconds without an answer until a process is replaced", above=0
    )
    mac: str = setting("basic_mac", "controller: basic_mac, hop_mac; with partners multi_module_mac, multi_hop_mac")
    learner: str = setting("q_learner", "learner (omg list)")
    seed: int = setting(1, "random seed", low=0, high=2**31 - 1)
    seeds: int = setting(1, "number of seeds trained in one program: seed, seed+1, …", above=0)
    t_max: int = setting(200_000, T_MAX_HELP, above=0)
    test_interval: int = setting(20_000, "environment steps between tests", above=0)
    test_nepisode: int = setting(64, "episodes per test", above=0)
    log_interval: int = setting(5_000, "environment steps between logged points", above=0)
    local_results_path: str = setting("results", "folder of all results")
    run_dir: str | None = setting(None, "folder of this run; null: a new one under local_results_path")
    use_tensorboard: bool = setting(True, "write TensorBoard event files")
    tracker: str | None = setting(None, "also log to wandb, wandb_offline or mlflow, where it is installed")
    save_model: bool = setting(True, "save checkpoints")
    save_model_interval: int = setting(100_000, "environment steps between checkpoints", above=0)
    keep_checkpoints: int = setting(3, "number of newest checkpoints to keep", above=0)
    save_replay_buffer: bool = setting(True, "checkpoints hold the replay buffer; false: smaller, resume is not exact")
    save_replay: bool = setting(False, "save a GIF of a test episode at the end")
    mongo_url: str | None = setting(None, "Sacred also records into this MongoDB")
    checkpoint_path: str | None = setting(None, "saved model to start from: a run's folder or a checkpoint's")
    load_step: int = setting(0, "which checkpoint: the nearest to this many steps; 0: the newest", low=0)
    resume: bool = setting(False, "continue the run in run_dir, or start it if there is none")
    evaluate: bool = setting(False, "only test the model in checkpoint_path")
    use_cuda: bool | None = setting(None, "compute on a GPU; null: if there is one")
    devices: int | str | None = setting(
        None, "devices of this machine that one run uses: a number, or all; seeds are spread first, then environments"
    )
    coordinator: str | None = setting(
        None, "several hosts share the seeds of one run: address and port of the first, or auto (Slurm, Open MPI)"
    )
    hosts: int | None = setting(None, "how many hosts", above=0)
    host: int | None = setting(None, "which of them this is: 0 to hosts-1", low=0)
    debug: bool = setting(False, "stop at the first loss that is not finite, log everything")
    compilation_cache: bool = setting(True, "keep compiled programs in the user's cache folder")

    def __post_init__(self) -> None:
        if self.seed + self.seeds > 2**31:
            raise UserError(f"seed is {self.seed}; seeds go from 0 to 2147483647.")
        if (
            self.devices is not None
            and self.devices != "all"
            and not (isinstance(self.devices, int) and self.devices > 0)
        ):
            raise UserError(f"devices is {self.devices!r}; it is a number of 1 or more, or all.")

    @property
    def all_seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))

    @property
    def n_seeds(self) -> int | None:
        """The length of the seed axis; None: a single seed has no such axis."""
        return None if self.seeds == 1 else self.seeds


@dataclass(frozen=True)
class LoopSettings:
    batch_size_run: int = setting(8, "parallel environments (with frozen partners: for each seat)", above=0)
    length_buckets: int = setting(2, "number of static lengths to which batches are truncated", above=0)


@dataclass(frozen=True)
class ReplaySettings:
    """Of learners that are not on-policy."""

    batch_size: int = setting(32, "episodes per update", above=0)
    buffer_size: int = setting(5000, "episodes in the replay buffer", above=0)
    buffer_gib: float = setting(4.0, "limit of the replay buffer's memory in GiB (each seed)", above=0)
    updates_per_iteration: int = setting(4, "updates after each collection of batch_size_run episodes", above=0)


@dataclass(frozen=True)
class BenchSettings:
    bench_envs: int = setting(256, "omg bench: parallel environments when the environment alone is measured", above=0)
    bench_pool: int = setting(10, "omg bench: number of untrained opponents", above=0)

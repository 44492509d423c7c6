"""Checks of array shapes and types in the whole suite, a shared compilation cache, and small environments."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

# Compilation dominates the time of the suite; three quarters of it go into optimising programs that run for a moment.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

from jaxtyping import install_import_hook

import tests.annotations

# Every annotated array of the package is checked while the tests run. The hook acts on modules imported after it.
install_import_hook("omg", f"{tests.annotations.__name__}.checked")

import jax  # noqa: E402
import jax._src.interpreters.mlir as lowering  # noqa: E402
import pytest  # noqa: E402

from omg.components.episode_buffer import EpisodeBatch, make_scheme  # noqa: E402
from omg.controllers import BasicMAC  # noqa: E402
from omg.envs import MultiAgentEnv, make  # noqa: E402
from omg.envs.jaxmarl_adapter import import_jaxmarl  # noqa: E402
from omg.runners import VectorRunner  # noqa: E402

# Subprocesses started by tests share this cache as well, and so do the runs of benchmarks/mutants.py.
OTHER_CACHE = os.environ.get("OMG_TEST_CACHE")
CACHE = Path(OTHER_CACHE or Path(__file__).parent.parent / ".pytest_cache" / "xdg")
os.environ["XDG_CACHE_HOME"] = str(CACHE)
jax.config.update("jax_compilation_cache_dir", str(CACHE / "omg-marl" / "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if OTHER_CACHE else 0.5)

# JAX prepares a context for each of the thousands of small programs, which takes longer than to lower one. Here every
# thread has one for all its programs. Threads must not share one: its registry of dialects is not made for that.
new_context = lowering.make_ir_context
context_of_thread = functools.cache(lambda thread: new_context())
lowering.make_ir_context = lambda: context_of_thread(threading.get_ident())

TWO_STEP = {
    "start": {"payoff": [[0, 0], [0, 0]], "next": [["safe", "safe"], ["risky", "risky"]]},
    "safe": {"payoff": [[7, 7], [7, 7]]},
    "risky": {"payoff": [[0, 1], [1, 8]]},
}


LONGEST = (
    "test_workflow.py", "test_first_day.py", "test_partners_end_to_end.py", "test_with_partners.py", "test_training.py",
    "test_resume.py", "test_hop.py", "test_play.py", "test_envs.py", "test_host_runners.py", "test_cli.py",
    "test_focal_losses.py", "test_known_answers.py", "test_adaptation.py", "test_tree_search.py",
)  # fmt: skip
"""Files that run first, so that neither of two processes ends with a long one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def _jaxmarl_imported() -> None:
    """Imported once, before any test reads the standard streams: a dependency of JaxMARL replaces them."""
    import_jaxmarl()


@pytest.fixture(autouse=True)
def _time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test fails after five minutes, unless it is marked slow."""
    if request.node.get_closest_marker("slow"):
        yield
        return

    def give_up(*_: object) -> None:
        pytest.fail("still running after five minutes")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def two_step() -> MultiAgentEnv:
    return make("matrix_game", states=TWO_STEP)


@pytest.fixture(scope="session")
def foraging() -> MultiAgentEnv:
    return make("foraging", grid_size=5, food=1, episode_limit=12)


def play(env: MultiAgentEnv, envs: int, seed: int = 0, **config) -> EpisodeBatch:
    """Episodes of a team with an untrained network, one in each of `envs` parallel environments."""
    mac = BasicMAC(env.spec, {"rnn_hidden_dim": 4} | config)
    runner = VectorRunner(env, mac, *make_scheme(env.spec), envs)
    params = mac.init_params(jax.random.key(seed))
    return jax.jit(lambda key: runner.run(params, jax.numpy.int32(0), key, False))(jax.random.key(seed))[0]

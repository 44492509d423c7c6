"""Compiled programs are kept between test runs, and small games and networks are shared."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Compiling is what tests spend their time on: half of it goes into optimising programs that run for a moment.
os.environ.setdefault("XLA_FLAGS", "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0")

import jax
import pytest

from omg.components.episode_buffer import EpisodeBatch, make_scheme
from omg.controllers import BasicMAC
from omg.envs import MultiAgentEnv, make
from omg.envs.jaxmarl_adapter import import_jaxmarl
from omg.runners import VectorRunner

# Subprocesses started by tests share this cache as well.
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "xdg"
os.environ["XDG_CACHE_HOME"] = str(CACHE)
jax.config.update("jax_compilation_cache_dir", str(CACHE / "omg-marl" / "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

TWO_STEP = {
    "start": {"payoff": [[0, 0], [0, 0]], "next": [["safe", "safe"], ["risky", "risky"]]},
    "safe": {"payoff": [[7, 7], [7, 7]]},
    "risky": {"payoff": [[0, 1], [1, 8]]},
}


LONGEST = (
    "test_strangers_end_to_end.py", "test_phases.py", "test_among_others.py", "test_resume.py", "test_hop.py",
    "test_known_answers.py", "test_training.py",
)  # fmt: skip
"""Files that two processes had better not leave for the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def _jaxmarl_imported() -> None:
    """Once, before any test looks at the streams: something that JaxMARL imports sets them anew."""
    import_jaxmarl()


@pytest.fixture(autouse=True)
def _none_takes_for_ever(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that should have failed at once, and trains instead, ends after five minutes."""
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


def play(env: MultiAgentEnv, worlds: int, seed: int = 0, **config) -> EpisodeBatch:
    """Episodes of a small random team."""
    mac = BasicMAC(env.spec, {"rnn_hidden_dim": 4} | config)
    runner = VectorRunner(env, mac, *make_scheme(env.spec), worlds)
    agent = mac.init_agent(jax.random.key(seed))
    return jax.jit(lambda key: runner.run(agent, jax.numpy.int32(0), key, False))(jax.random.key(seed))[0]

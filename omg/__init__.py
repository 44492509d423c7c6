"""OMG: opponent modelling in multi-agent reinforcement learning, compiled end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omg.api import (
        Episodes,
        Player,
        Run,
        UserError,
        evaluate,
        load,
        make_env,
        pool,
        pretrain,
        rollout,
        runs,
        train,
    )

__version__ = "0.6.0"
__all__ = [
    "Episodes", "Player", "Run", "UserError", "evaluate", "load", "make_env", "pool", "pretrain", "rollout", "runs",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The API is imported when it is used: the command line starts without it."""
    if name in __all__:
        from omg import api

        return getattr(api, name)
    raise AttributeError(f"module 'omg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]

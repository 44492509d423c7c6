"""Commands that a command starts as a part of its own work: they are killed when it ends, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal

PARENT = "OMG_PARENT"
PR_SET_PDEATHSIG = 1


def environment_of_child() -> dict[str, str]:
    """For a child of this process. Children share a GPU, so they allocate its memory as they need it."""
    return {**os.environ, PARENT: str(os.getpid()), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def end_with_parent() -> None:
    """Called first in every process. Without a parent that asked for it nothing happens (prctl is Linux's own)."""
    if parent := os.environ.pop(PARENT, None):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            os._exit(137)  # it has ended already
        # Ray's workers, and so their children, block Ctrl-C.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

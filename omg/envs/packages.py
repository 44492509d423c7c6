"""Optional packages: the error for one that cannot be imported, and imports without their console output."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from omg.utils.settings import UserError


def missing_package(user: str, package: str, command: str, error: ImportError) -> UserError:
    """The error for a package that cannot be imported: what needs it, why it fails, and how to install it."""
    absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package
    why = "is not installed" if absent else f"cannot be imported ({error})"
    return UserError(f"{user} needs the package {package}, which {why}: {command}.")


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discards what the block writes to stdout and stderr.

    The file descriptors are redirected too, because one of JaxMARL's dependencies resets `sys.stdout` while it is
    imported.
    """
    _flush()
    with contextlib.ExitStack() as stack:
        for descriptor in (1, 2):
            # A process without a console may have no such descriptor.
            with contextlib.suppress(OSError):
                stack.callback(_restore, os.dup(descriptor), descriptor)
                _point_to_null(descriptor)
        # Callbacks run in reverse order: the streams are flushed before the descriptors are restored.
        stack.callback(_flush)
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()


def _point_to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _restore(saved: int, descriptor: int) -> None:
    os.dup2(saved, descriptor)
    os.close(saved)

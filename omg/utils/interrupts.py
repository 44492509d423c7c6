"""Ctrl-C and SIGTERM: the run finishes the call in flight, saves and stops."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from omg.utils.logging import say


@contextlib.contextmanager
def raises(number: int) -> Iterator[None]:
    """While entered, a signal raises KeyboardInterrupt, as Ctrl-C usually does in Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Interrupts:
    """While entered, the first signal only sets `received`; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.depth = 0
        self.previous: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        """May be entered again while it is entered: the outer one restores the handlers."""
        self.depth += 1
        if self.depth == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth:
            return
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        say(f"{signal.Signals(number).name} received: saving, then stopping.")

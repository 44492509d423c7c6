"""`python -m omg` is `omg`."""

import os
import signal


def run() -> None:
    """The program. While modules are imported an exception could meet half of them: Ctrl-C ends the process."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from omg.utils.children import end_with_parent

    end_with_parent()
    from omg.cli import entry

    entry()


if __name__ == "__main__":
    run()

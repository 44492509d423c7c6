"""Runs commands side by side on one machine, and stops all of them in time; the same call goes on where it stopped.

`python benchmarks/side_by_side.py LIST [--jobs=8] [--seconds=500] [--logs=DIR]`

LIST holds one command per line (without `omg`; # starts a comment), each with a folder of its own and able to resume:

    train --config=mappo --env-config=battle --seeds=3 --run_dir=runs/25m --resume with env_args.map_name=25m
    benchmark lbf_7x7 --budget=paper --run_dir=runs/benchmark

After so many seconds every command that still runs gets Ctrl-C, upon which it saves what it has. Prints one line per
command: how it ended, after how many seconds, and the last line that it wrote. The exit status is 1 if one failed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 60
"""Seconds that a command has after Ctrl-C."""


class Job:
    """One command and its process."""

    def __init__(self, number: int, words: list[str], logs: Path):
        self.name = f"{number:02d}_{words[0]}"
        self.log = logs / f"{self.name}.log"
        self.started = time.monotonic()
        self.file = self.log.open("w")
        command = [sys.executable, "-m", "omg", *words]
        self.process = subprocess.Popen(
            command, stdout=self.file, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=heed_ctrl_c
        )
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        self.process.send_signal(signal.SIGINT)

    def report(self) -> bool:
        """Prints how it ended; whether it did not fail."""
        self.file.close()
        status = self.process.returncode
        how = "done" if status == 0 else "stopped" if self.stopped else f"failed ({status})"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        print(
            f"{self.name} {how} after {time.monotonic() - self.started:.0f} s: {lines[-1] if lines else ''}", flush=True
        )
        return status == 0 or self.stopped


def heed_ctrl_c() -> None:
    """A shell that starts this script in the background lets it, and its commands, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(commands: list[list[str]], jobs: int, seconds: float, logs: Path) -> bool:
    """All commands, so many at once, until the time is over. Whether none failed."""
    logs.mkdir(parents=True, exist_ok=True)
    end, waiting, running, well = time.monotonic() + seconds, list(enumerate(commands)), list[Job](), True
    while running or (waiting and time.monotonic() < end):
        while waiting and len(running) < jobs and time.monotonic() < end:
            running.append(Job(*waiting.pop(0), logs))
        if time.monotonic() >= end:
            for job in running:
                if not job.stopped:
                    job.stop()
                elif time.monotonic() > end + PATIENCE:
                    job.process.kill()
        time.sleep(0.2)
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            well &= job.report()
    if waiting:
        print(f"{len(waiting)} not started: the same call starts them.")
    return well


def main() -> None:
    options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
    files = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(files) != 1 or set(options) - {"jobs", "seconds", "logs"}:
        sys.exit(__doc__)
    lines = (line.partition("#")[0].split() for line in Path(files[0]).read_text().splitlines())
    commands = [words for words in lines if words]
    logs = Path(options.get("logs", "logs"))
    sys.exit(0 if run(commands, int(options.get("jobs", 8)), float(options.get("seconds", 500)), logs) else 1)


if __name__ == "__main__":
    main()

"""How speed and memory grow with worlds: `ppo` on stag hunt with 1 to 1,024 of them.

`python benchmarks/scaling.py` prints a line for each. Memory is the most that a process of its own held at once (of the
host, on Linux).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

WORLDS = (1, 4, 16, 64, 256, 1024)


def measure(worlds: int) -> str:
    words = ["--config=ppo", "--env-config=stag_hunt", "--policy_model=idv_rnn"]
    words += [f"--{key}={worlds}" for key in ("batch_size_run", "batch_size", "buffer_size", "bench_worlds")]
    command = [sys.executable, "-m", "omg", "bench", "--json", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    found = json.loads(said.strip().splitlines()[-1])
    training, alone = found["env_steps_per_second_train"], found["env_steps_per_second_env"]
    return f"training {training:,.0f} steps/s, the world alone {alone:,.0f}, {used.ru_maxrss / 2**20:.2f} GiB"


def main() -> None:
    for worlds in WORLDS:
        print(f"{worlds:5} worlds: {measure(worlds)}", flush=True)


if __name__ == "__main__":
    main()

"""Measures speed and memory of `ppo` on stag hunt with 1 to 1,024 parallel environments.

`python benchmarks/scaling.py` prints one line per number of environments. Memory is the peak resident host memory of a
separate process (Linux only).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

ENVS = (1, 4, 16, 64, 256, 1024)


def measure(envs: int) -> str:
    words = ["--config=ppo", "--env-config=stag_hunt", "--minibatches=1"]
    words += [f"--{key}={envs}" for key in ("batch_size_run", "bench_envs")]
    command = [sys.executable, "-m", "omg", "bench", "--json", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    found = json.loads(said.strip().splitlines()[-1])
    training, alone = found["env_steps_per_second_train"], found["env_steps_per_second_env"]
    return f"training {training:,.0f} steps/s, environment only {alone:,.0f} steps/s, {used.ru_maxrss / 2**20:.2f} GiB"


def main() -> None:
    for envs in ENVS:
        print(f"{envs:5} environments: {measure(envs)}", flush=True)


if __name__ == "__main__":
    main()

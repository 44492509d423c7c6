"""Measures the training rates in docs/performance.md and prints one JSON line per row.

`python benchmarks/figures.py cpu` or `python benchmarks/figures.py gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

EPYMARL = "--config=iql --env-config=foraging"
SPREAD = "--config=iql --env-config=jaxmarl --batch_size_run=8 with env_args.episode_limit=25"
MANY = "--config=iql --env-config=foraging --target_update_interval=12800 --buffer_size=16384"

SETS = {
    "cpu": {
        "foraging, EPyMARL's schedule, GRU 128": f"{EPYMARL} --rnn_hidden_dim=128",
        "foraging, EPyMARL's schedule, GRU 64": EPYMARL,
        "simple_spread, JaxMARL's schedule, GRU 64": SPREAD,
    },
    "gpu": {
        "1 seed, 64 envs, 1 update": f"{MANY} --batch_size_run=64",
        "1 seed, 4096 envs, 64 updates": f"{MANY} --batch_size_run=4096 --updates_per_iteration=64",
        "8 seeds, 1024 envs each, 16 updates": f"{MANY} --batch_size_run=1024 --updates_per_iteration=16 --seeds=8",
        "32 seeds, 1024 envs each, 16 updates": f"{MANY} --batch_size_run=1024 --updates_per_iteration=16 --seeds=32",
        "1 seed, 8 envs": f"{EPYMARL} --batch_size_run=8",
        "8 seeds, 8 envs each": f"{EPYMARL} --batch_size_run=8 --seeds=8",
    },
}


def main() -> None:
    chosen = SETS[sys.argv[1]]
    for name, words in chosen.items():
        command = [sys.executable, "-m", "omg", "bench", "--json", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        line = (
            done.stdout.strip().splitlines()[-1] if done.returncode == 0 else json.dumps({"error": done.stderr[-300:]})
        )
        print(json.dumps({"what": name, "command": "omg bench " + words}), line, flush=True)


if __name__ == "__main__":
    main()

"""Measures the training rates in docs/performance.md and prints one JSON line per row.

`python benchmarks/figures.py cpu` or `python benchmarks/figures.py gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

EPYMARL = "--config=iql --env-config=foraging --preset=pymarl"
SPREAD = "--config=iql --env-config=simple_spread --preset=pymarl --batch_size_run=8"
MANY = "--config=iql --env-config=foraging --buffer_size=16384"
ONE_SEED = "--batch_size_run=16384"

SETS = {
    "cpu": {
        "foraging, EPyMARL's schedule, GRU 128": f"{EPYMARL} --rnn_hidden_dim=128",
        "foraging, EPyMARL's schedule, GRU 64": EPYMARL,
        "simple_spread, JaxMARL's schedule, GRU 64": SPREAD,
    },
    "gpu": {
        "1 seed, 64 envs, 1 update": f"{MANY} --batch_size_run=64 --updates_per_iteration=1",
        "1 seed, 4096 envs, 64 updates": f"{MANY} --batch_size_run=4096 --updates_per_iteration=64",
        "8 seeds, 1024 envs each, 16 updates": f"{MANY} --batch_size_run=1024 --updates_per_iteration=16 --seeds=8",
        "32 seeds, 1024 envs each, 16 updates": f"{MANY} --batch_size_run=1024 --updates_per_iteration=16 --seeds=32",
        "1 seed, 8 envs, 4 updates": "--config=iql --env-config=foraging",
        "8 seeds, 8 envs each, 4 updates": "--config=iql --env-config=foraging --seeds=8",
        "ppo": f"--config=ppo --env-config=foraging {ONE_SEED}",
        "pqn": f"--config=pqn --env-config=foraging {ONE_SEED}",
        "mappo on 3s_vs_5z": "--config=mappo --env-config=battle --batch_size_run=4096 with env_args.map_name=3s_vs_5z",
        "mappo on 8m": "--config=mappo --env-config=battle --batch_size_run=2048 with env_args.map_name=8m",
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

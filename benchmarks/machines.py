"""What several devices and Ray give and cost, on this machine.

`python benchmarks/machines.py devices` compares one simulated device of the CPU with two: seeds, and environments.
`python benchmarks/machines.py transfers` lists what eight devices would send to each other, each operation once.
`python benchmarks/machines.py ray [--runs=64]` times so many tiny runs in a shell loop, two at once, and on Ray.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PPO = ["--config=ppo", "--env-config=foraging", "--batch_size_run=64"]
TINY = ["--config=iql", "--env-config=two_step", "--t_max=64", "--test_nepisode=4", "--use_tensorboard=false"]
SENDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
BYTES = {
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "pred": 1,
    "f16": 2,
    "bf16": 2,
    "s8": 1,
    "u8": 1,
    "f64": 8,
    "s64": 8,
    "u64": 8,
    "u16": 2,
    "s16": 2,
}


def simulated(devices: int) -> dict[str, str]:
    return os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}


def devices() -> None:
    """Training steps per second, summed over seeds. One device of a CPU may use both cores already."""
    for what, words in (("2 seeds", ["--seeds=2"]), ("1 seed, 64 environments", [])):
        rates = []
        for count in (1, 2, 1, 2):
            command = [sys.executable, "-m", "omg", "bench", "--json", *PPO, *words, f"--devices={count}"]
            done = subprocess.run(command, cwd=ROOT, env=simulated(2), capture_output=True, text=True, check=True)
            rates.append(json.loads(done.stdout.strip().splitlines()[-1])["env_steps_per_second_train"])
            print(f"{what}, {count} devices: {rates[-1]:,.0f} steps/s", flush=True)
        print(f"{what}: two devices are {sum(rates[1::2]) / sum(rates[::2]):.2f} times as fast as one", flush=True)


def transfers() -> None:
    """Collective operations in the compiled program, each counted once (`while` in a name: once in every round)."""
    os.environ.update(simulated(8))
    sys.path.insert(0, str(ROOT))
    import jax
    import numpy as np

    from omg.build import build
    from omg.cli import parse
    from omg.commands.common import configure

    for words in (["--seeds=8"], []):
        loop = build(configure(parse(["train", *PPO, *words, "--devices=8"]))).loop
        numbers = (np.int32(0), np.int32(1), np.int32(0))
        state = loop.init()
        lowered = loop.compiled.lower(state, loop.no_totals(), loop.keys, *numbers, loop.runner.policies, np.bool_(0))
        sent = [
            (kind, sum(_bytes(shape) for shape in re.findall(r"\w+\[[\d,]*\]", result)), line)
            for line in (lowered.compile().as_text() or "").splitlines()
            for kind in SENDS
            if (found := re.search(rf"= (.*?) {kind}(-start)?\(", line))
            for result in [found.group(1)]
        ]
        print(f"{' '.join(words) or '--seeds=1'}: {len(sent)} operations, {sum(size for _, size, _ in sent):,} bytes")
        for kind, size, line in sent:
            place = re.search(r'op_name="([^"]*)"', line)
            print(f"  {kind} {size:,} bytes {place.group(1)[-100:] if place else ''}")
        parameters = sum(x.nbytes for x in jax.tree.leaves(state.learner.params))
        print(f"  parameters: {parameters:,} bytes")


def _bytes(shape: str) -> int:
    kind, sizes = shape.rstrip("]").split("[")
    return BYTES[kind] * math.prod(int(n) for n in sizes.split(",") if n)


def ray(runs: int) -> None:
    """The same runs three times: one after the other, two at once, and on Ray with two cores."""
    rates = [f"{0.0001 * (i + 1):.4f}" for i in range(runs)]
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "omg", "train", *TINY, f"--run_dir={folder}/warm"], cwd=ROOT, check=True)
        started = time.perf_counter()
        for rate in rates:
            command = [sys.executable, "-m", "omg", "train", *TINY, f"--lr={rate}", f"--run_dir={folder}/loop/{rate}"]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        seconds["a shell loop"] = time.perf_counter() - started
        for name, engine in {"--jobs=2": ["--jobs=2"], "--engine=ray": ["--engine=ray"]}.items():
            started = time.perf_counter()
            words = [*TINY, f"--grid=lr={','.join(rates)}", *engine, f"--run_dir={folder}/{name.strip('-')}"]
            subprocess.run([sys.executable, "-m", "omg", "sweep", *words], cwd=ROOT, check=True, capture_output=True)
            seconds[name] = time.perf_counter() - started
        for name, taken in seconds.items():
            print(f"{runs} tiny runs, {name}: {taken:.1f} s, {taken / runs:.2f} s each", flush=True)


def main(words: list[str]) -> None:
    options = dict(word.removeprefix("--").split("=", 1) for word in words[1:])
    match words[:1]:
        case ["devices"]:
            devices()
        case ["transfers"]:
            transfers()
        case ["ray"]:
            ray(int(options.get("runs", 64)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Measures the CPU time (user seconds) from the shell to the end of a run with a single collection.

`python benchmarks/startup.py [NAME …]` prints one line per configuration: with an empty compilation cache, and again
with the cache of the first run. `--profile` also says where the time goes: imports, tracing, XLA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = {
    "iql": "--config=iql",
    "iql among scripted policies": "--config=iql --pool=rules",
    "ppo among scripted policies": "--config=ppo --pool=rules",
    "iql_omg among scripted policies": "--config=iql_omg --pool=rules",
}
QUICK = "--env-config=foraging --t_max=1 --test_nepisode=8 --save_model=false"


def user_seconds(words: str, folder: Path) -> tuple[float, str]:
    """The user time of one command in a folder of its own, and its log of compilations."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_LOG_COMPILES": "1"}
    command = [sys.executable, "-m", "omg", *words.split(), f"--local_results_path={folder / 'results'}"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    log = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed: {log[-500:]}")
    return used.ru_utime, log


def spent(log: str, what: str) -> float:
    """Wall-clock seconds of all steps of one type in a log of compilations."""
    return sum(float(s) for s in re.findall(rf"Finished {what}.* in ([\d.e-]+) sec", log))


def main(words: list[str]) -> None:
    names = [word for word in words if not word.startswith("--")]
    for name, run in RUNS.items():
        if names and name.split()[0] not in names and name not in names:
            continue
        folder = Path(tempfile.mkdtemp())
        if "omg" in run:
            user_seconds(f"pretrain {run} --env-config=foraging --vae_updates=50 --vae_episodes=2", folder)
            shutil.rmtree(folder / "cache", ignore_errors=True)
        (empty, log), (warm, again) = (user_seconds(f"train {run} {QUICK}", folder) for _ in range(2))
        print(f"{name}: {empty:.1f} s with an empty cache, {warm:.1f} s with a warm one", flush=True)
        if "--profile" in words:
            imports = [sys.executable, "-X", "importtime", "-c", "import omg.commands.train, omg.envs.foraging"]
            said = subprocess.run(imports, capture_output=True, text=True).stderr
            total = sum(int(us) for us in re.findall(r"import time:\s+(\d+) \|", said)) / 1e6
            for title, text in (("empty", log), ("warm", again)):
                parts = {"tracing": spent(text, "tracing"), "lowering": spent(text, "jaxpr to MLIR")}
                parts["XLA"] = spent(text, "XLA compilation")
                print(f"  {title}: imports {total:.1f} s, " + ", ".join(f"{k} {v:.1f} s" for k, v in parts.items()))
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])

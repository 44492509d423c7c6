"""What happens when things go wrong: fuzzed command lines, damaged files, forged manifests, processes that are killed.

`python benchmarks/faults.py lines|files|forged|kills|all [--count=N] [--seed=N] [--show]` prints a table: how many
tries ended in a sentence, how many were accepted, how many with a traceback, and how many with a wrong result. The
last two must be 0. `--show` prints every try that is not right.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

SMALL = ["--batch_size_run=2", "--batch_size=4", "--rnn_hidden_dim=8", "--test_nepisode=4", "--use_tensorboard=false"]
BOARD = ["--env_args.grid_size=5", "--env_args.food=1", "--env_args.episode_limit=8"]
NUMBERS = [
    "1e30",
    "-1e30",
    "nan",
    ".nan",
    "inf",
    ".inf",
    "-.inf",
    "0",
    "-1",
    "1e-300",
    str(2**63),
    str(10**400),
    "0x10",
    "1_000",
]
VALUES = [
    *NUMBERS,
    "[]",
    "{}",
    "null",
    "~",
    "true",
    "[1,2",
    "{a: 1",
    "[" * 3000,
    "!!python/object:os.system",
    "&a [*a]",
    "a" * 5000,
    "\x00",
    "\udcff",
    "é",
    "🙂",
    "..",
    "/",
    "/dev/null",
    "-",
    "--",
    "=",
    "[a,b]",
    "{a: b}",
    "'",
    '"',
    "|",
    ">",
    "2020-01-01",
    "1:2:3",
    "0777",
    "*",
    "%",
    "\n",
    " ",
    "",
]
KEYS = [
    "",
    *[
        "seed",
        "seeds",
        "t_max",
        "lr",
        "gamma",
        "batch_size",
        "batch_size_run",
        "buffer_size",
        "rnn_hidden_dim",
        "env_args.food",
        "env_args.grid_size",
        "env_args",
        "env",
        "env_args.",
        "seed.",
        ".seed",
        "mixer",
        "policy_model",
        "runner",
        "mac",
        "learner",
        "pool",
        "pool_rules",
        "run_dir",
        "local_results_path",
        "checkpoint_path",
        "load_step",
        "test_interval",
        "devices",
        "name",
        "tracker",
        "preset",
        "epsilon_finish",
        "grad_norm_clip",
        "action_selector",
        "lr_decay",
        "seed.seed",
        "a.b.c.d",
    ],
]
VERBS = [
    "",
    *[
        "train",
        "print_config",
        "evaluate",
        "pool",
        "pretrain",
        "collect",
        "probe",
        "crossplay",
        "adapt",
        "workflow",
        "benchmark",
        "sweep",
        "runs",
        "plot",
        "export",
        "list",
        "completion",
        "trian",
        "--help",
    ],
]
CONFIGS = ["iql", "ppo", "qmix", "iql_omg", "hop", "4iql3qmix1iql_omg", "no_such", "", "../x", "[]", "1e30"]
ENVS = ["foraging", "two_step", "matrix_game", "stag_hunt", "no_such", "", "{}"]


TASK = """\
based_on: prisoners_dilemma
pool: {pool_algs: [], pool_test_algs: [], pool_rules: [tit_for_tat, grim], pool_test_rules: [alternate, always_defect]}
budgets:
  tiny:
    variables: {steps: 4000, response_steps: 2000, seeds: 1, episodes: 8, pool_steps: 1}
    skip: [blind]
"""


def call(words: list[str]) -> tuple[str, str]:
    """Runs a command in this process: sentence, accepted or traceback, and what it printed."""
    from omg import cli

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = cli.main(words)
        except SystemExit as error:
            status = int(error.code or 0) if isinstance(error.code, int | None) else 2
        except BaseException:
            return "traceback", traceback.format_exc()
    return ("accepted" if status == 0 else "sentence"), out.getvalue()


@contextlib.contextmanager
def without_learning() -> Iterator[None]:
    """Everything up to the first iteration happens; nothing is compiled or learned."""
    from omg.commands import pool, train

    with (
        mock.patch.object(train, "train", return_value=0),
        mock.patch.object(pool, "train_members", return_value=None),
        mock.patch.object(pool, "generate_members", return_value=None),
        mock.patch.object(pool, "scripted_return", return_value=0.0),
    ):
        yield


def fuzzed(chance: random.Random, folder: Path) -> list[str]:
    """A command line of which some parts are wrong."""
    words = [chance.choice(VERBS) if chance.random() < 0.5 else "train"]
    if chance.random() < 0.8:
        words.append(f"--config={chance.choice(CONFIGS)}" if chance.random() < 0.5 else "--config=iql")
    if chance.random() < 0.8:
        words.append(f"--env-config={chance.choice(ENVS)}" if chance.random() < 0.4 else "--env-config=two_step")
    for _ in range(chance.randint(1, 3)):
        key, value = chance.choice(KEYS), chance.choice(VALUES)
        form = chance.random()
        words += (
            [f"--{key}={value}"] if form < 0.7 else [f"--{key}", value] if form < 0.8 else ["with", f"{key}={value}"]
        )
    if chance.random() < 0.1:
        words.append(chance.choice(VALUES))
    if not any("run_dir" in w or "local_results_path" in w for w in words) and chance.random() < 0.9:
        words.insert(1, f"--local_results_path={folder}")
    chance.shuffle(words[1:])
    return words


def lines(count: int, seed: int, show: bool) -> Counter:
    chance, found = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, without_learning(), contextlib.chdir(folder):
        for i in range(count):
            words = fuzzed(chance, Path(folder) / str(i))
            result, text = call(words)
            report(found, result, words, text, show)
    return found


def report(found: Counter, result: str, what: Any, text: str, show: bool) -> None:
    found[result] += 1
    if show and result in ("traceback", "wrong"):
        shown = [word[:80] for word in what] if isinstance(what, list) else what
        print(f"--- {result}: {shown}\n{text[-1500:]}", flush=True)


# --- damaged files


def made(folder: Path) -> dict[str, Path]:
    """A run with two checkpoints, a pool, trajectories and a VAE, all real."""
    quick = [*SMALL, *BOARD, "--save_model_interval=64", "--test_interval=64", "--log_interval=32"]
    foraging = ["--env-config=foraging", *BOARD]
    run, pool, played = folder / "run", folder / "pool", folder / "played"
    commands = [
        ["train", "--config=iql", "--env-config=foraging", *quick, "--t_max=128", f"--run_dir={run}"],
        ["pool", *foraging, "--pool_algs=[iql]", "--pool_test_algs=[]", "--pool_test_seeds=0", "--pool_stages=[1.0]",
         "--pool_rules=[nearest_food]", "--pool_test_rules=[slow]", "--t_max=64", *SMALL, f"--pool={pool}"],
        ["collect", *foraging, f"--pool={pool}", "--vae_episodes=4", f"--run_dir={played}"],
    ]  # fmt: skip
    for words in commands:
        result, text = call(words)
        assert result == "accepted", f"{words}: {text}"
    return {"run": run, "pool": pool, "played": played}


def damages(chance: random.Random, data: bytes) -> tuple[str, bytes | None]:
    """One way in which a file can be wrong; None: it is gone."""
    place = chance.randrange(max(len(data), 1))
    kind = chance.choice(
        ["bit", "digit", "cut", "empty", "random", "gone", "undecodable", "doubled", "zeros", "letter"]
    )
    digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
    if kind == "digit" and digits:
        at = chance.choice(digits)
        return kind, data[:at] + bytes([48 + (data[at] - 48 + chance.randint(1, 9)) % 10]) + data[at + 1 :]
    wrong = {
        "bit": data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :] if data else b"\0",
        "cut": data[:place],
        "empty": b"",
        "random": chance.randbytes(max(len(data), 8)),
        "undecodable": data[:place] + b"\xff\xfe\xc3" + data[place:],
        "doubled": data + data,
        "zeros": data[:place] + bytes(len(data) - place),
        "letter": data[:place] + b"x" + data[place + 1 :],
    }
    return kind, wrong.get(kind) if kind != "digit" else data + b"1"


def read_back(path: Path) -> bool:
    return "sacred" not in path.parts and path.name != ".lock" and path.suffix not in (".png", ".gif", ".log")


def digest(tree: Any) -> str:
    import hashlib

    import jax
    import numpy as np

    state = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        state.update(np.ascontiguousarray(leaf).tobytes())
    return state.hexdigest()


def resumed(folder: Path) -> tuple[str, str, Any]:
    """Resumes a run up to its first iteration: what is said, and what would go on."""
    from omg.training import trainer

    seen: dict[str, Any] = {}

    def stop(self: Any, *_: Any) -> int:
        state = (self.state.learner.params, self.state.t_env, self.state.replay)
        seen["state"] = (self.counters.t_env, digest(state), json.dumps(self.config, sort_keys=True, default=str))
        return signal.SIGINT

    with mock.patch.object(trainer.Trainer, "run_safely", stop):
        result, text = call(["train", "--resume", f"--run_dir={folder}"])
    return ("accepted" if "state" in seen else result), text, seen.get("state")


def files(count: int, seed: int, show: bool) -> Counter:
    """Every file that is read back is damaged in turn; what is accepted must be what was written."""
    chance, found = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = made(folder)
        (sources["run"] / "summary.json").rename(folder / "summary.json")
        states = {}
        saved = [int(path.name) for path in sources["run"].glob("checkpoints/*[0-9]")]
        for steps in saved:
            copy = shutil.copytree(sources["run"], folder / "copy")
            for newer in copy.glob("checkpoints/*[0-9]"):
                if int(newer.name) > steps:
                    shutil.rmtree(newer)
            states[steps] = resumed(copy)[2]
            shutil.rmtree(copy)
        fresh = shutil.copytree(sources["run"], folder / "copy")
        shutil.rmtree(fresh / "checkpoints")
        started = resumed(fresh)[2]
        shutil.rmtree(fresh)
        right = {state[1:] for state in states.values()} | {started[1:]}
        pretrain = ["pretrain", "--config=hop_plus", "--env-config=foraging", *BOARD, "--vae_updates=1"]
        pretrain.append(f"--run_dir={folder / 'vae'}")
        readers: dict[str, Callable[[Path], tuple[str, str, Any]]] = {
            "run": resumed,
            "pool": lambda p: (*call(["pool", "show", "--env-config=foraging", *BOARD, f"--pool={p}"]), None),
            "played": lambda p: (*call([*pretrain, f"--trajectories={p}"]), None),
        }
        shown = readers["pool"](sources["pool"])[1].replace(str(sources["pool"]), "")
        for i in range(count):
            kind = ("run", "pool", "run", "played")[i % 4]
            copy = shutil.copytree(sources[kind], folder / "copy")
            chosen = [p for p in sorted(copy.rglob("*")) if p.is_file() and read_back(p)]
            path = chance.choice(chosen)
            how, data = damages(chance, path.read_bytes())
            path.unlink() if data is None else path.write_bytes(data)
            result, text, state = readers[kind](copy)
            if kind == "run":
                extra = [
                    call(words)
                    for words in (
                        ["runs", str(copy)],
                        ["export", str(copy), "--metrics", f"--to={folder / 'x.csv'}"],
                    )
                ]
                if any(r == "traceback" for r, _ in extra):
                    result, text = "traceback", next(t for r, t in extra if r == "traceback")
                elif result == "accepted" and state[1:] not in right:
                    result = "wrong"
            if kind == "pool" and result == "accepted" and text.replace(str(copy), "") != shown:
                result = "wrong"
            report(found, result, f"{path.relative_to(copy)}: {how}", text, show)
            shutil.rmtree(copy)
            shutil.rmtree(folder / "vae", ignore_errors=True)
    return found


def forged(count: int, seed: int, show: bool) -> Counter:
    """Manifests with other content and the right checksum."""
    from omg.utils.checkpoints import digest_of

    chance, found = random.Random(seed), Counter[str]()
    wrong = [None, -1, 1.5, "x", [], {}, True, 10**40, [None], {"a": 1}, "../../etc/passwd", [[1]], float("1e30")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = made(folder)["run"]
        (run / "summary.json").unlink()
        for _ in range(count):
            copy = shutil.copytree(run, folder / "copy")
            for path in copy.glob("checkpoints/*/checkpoint.json"):
                manifest = json.loads(path.read_text())
                manifest.pop("checksum")
                inner = chance.choice([manifest, manifest, manifest["counters"], manifest["files"]])
                key = chance.choice(sorted(inner))
                value = chance.choice(wrong)
                if chance.random() < 0.2:
                    del inner[key]
                else:
                    inner[key] = value
                path.write_text(json.dumps(manifest | {"checksum": digest_of(manifest)}))
            result, text, _ = resumed(copy)
            again, more = call(
                ["evaluate", f"--checkpoint_path={copy}", "--test_nepisode=x", f"--run_dir={folder / 'e'}"]
            )
            result, text = ("traceback", more) if again == "traceback" else (result, text)
            report(found, result, f"{key}: {value!r}", text, show)
            shutil.rmtree(copy)
    return found


# --- killed processes


def kills(count: int, seed: int, show: bool) -> Counter:
    """Commands are killed at random moments and started again until they end; the results must be the same."""
    chance, found = random.Random(seed), Counter[str]()
    steps = [*SMALL, "--test_interval=4000", "--save_model_interval=500", "--log_interval=500"]
    foraging = ["--env-config=foraging", *BOARD]
    training = ["train", "--config=iql", *foraging, *steps, "--resume", "--run_dir={}"]
    members = ["--pool_algs=[iql]", "--pool_test_algs=[vdn]", "--pool_test_seeds=1", "--t_max=4000"]
    members += ["--pool_rules=[nearest_food]", "--pool_test_rules=[slow]"]
    jobs = {
        "train": [*training, "--t_max=12000"],
        "host": [*training, "--t_max=3000", "--runner=parallel"],
        "pool": ["pool", *foraging, *members, *SMALL, "--pool={}"],
        "benchmark": ["benchmark", "{task}", "--budget=tiny", "--methods=base", "--run_dir={}"],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = folder / "two_strategies.yaml"
        task.write_text(TASK)
        whole = {}
        for job, words in jobs.items():
            begun = time.monotonic()
            done = start([w.format(folder / job, task=task) for w in words])
            assert done.wait() == 0, job
            whole[job] = (contents(folder / job), time.monotonic() - begun)
        killed, number = 0, 0
        while killed < count:
            job = list(jobs)[number % len(jobs)]
            number += 1
            home = folder / f"{job}_{number}"
            words, status = [w.format(home, task=task) for w in jobs[job]], -9
            while status == -9:
                process = start(words)
                moment = chance.uniform(0.5, 1.2 * whole[job][1])
                try:
                    status = process.wait(moment if killed < count else None)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    status = process.wait()
                    killed += 1
                    print(f"\r{killed} of {count} kills", end="", file=sys.stderr, flush=True)
            output = process.stdout.read() if process.stdout else ""
            if status or "Traceback" in output:
                result = "traceback" if "Traceback" in output else "wrong"
            else:
                result = "accepted" if contents(home) == whole[job][0] else "wrong"
            report(found, result, f"{job}, {killed} kills so far", output, show)
            shutil.rmtree(home, ignore_errors=True)
        found["kills"] = killed
    return found


def start(words: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "omg", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def contents(folder: Path) -> dict[str, str]:
    """The checksums of every network that a command made."""
    from omg.utils.checkpoints import checksum

    return {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*.safetensors"))}


KINDS: dict[str, tuple[Callable[[int, int, bool], Counter], int]] = {
    "lines": (lines, 500), "files": (files, 300), "forged": (forged, 60), "kills": (kills, 100),
}  # fmt: skip


def main(arguments: list[str]) -> int:
    named = [word for word in arguments if not word.startswith("--")]
    options = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--"))
    if not named or any(word not in (*KINDS, "all") for word in named):
        print(__doc__)
        return 2
    bad = 0
    print(f"{'':<10}{'tries':>7}{'sentence':>10}{'accepted':>10}{'traceback':>11}{'wrong':>7}")
    for kind, (run, usual) in KINDS.items():
        if kind in named or "all" in named:
            found = run(int(options.get("count") or usual), int(options.get("seed") or 0), "show" in options)
            killed = found.pop("kills", 0)
            each = "".join(
                f"{found[k]:>{w}}" for k, w in (("sentence", 10), ("accepted", 10), ("traceback", 11), ("wrong", 7))
            )
            print(f"{kind:<10}{found.total():>7}{each}" + (f"  ({killed} kills)" if killed else ""), flush=True)
            bad += found["traceback"] + found["wrong"]
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

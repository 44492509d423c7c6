"""A results folder with real runs, made once: a team, one agent with a scripted partner and its episode, tables."""

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import omg
from tests.helpers import made_once

SMALL = {
    "t_max": 300, "test_interval": 100, "log_interval": 100, "test_nepisode": 4, "rnn_hidden_dim": 4, "batch_size": 4,
    "batch_size_run": 2, "buffer_size": 16, "use_tensorboard": False,
}  # fmt: skip
BENCHMARK = """task,method,partner,seed,return,score
game,random,x,0,0,0
game,base,x,1,1,0.5
game,base,x,2,1,0.7
game,base,y,1,1,0.5
game,base,y,2,1,0.7
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Real runs, made once for all processes of the suite; every test gets a copy of its own."""
    return made_once(tmp_path_factory, "view", make_results)


def make_results(folder):
    root = folder / "results"
    omg.train("iql", env="two_step", seeds=2, run_dir=root / "team", **SMALL)
    focal = SMALL | {"env_args": {"rounds": 6}, "pool": "rules", "pool_rules": ["tit_for_tat"], "save_replay": True}
    omg.train("iql_am", env="prisoners_dilemma", run_dir=root / "focal", **focal)
    evaluated = root / "evaluated"
    omg.evaluate(root / "focal", pool="rules", pool_rules=["tit_for_tat"], pool_test_rules=["always_defect"],
                 test_nepisode=2, save_replay=True, run_dir=evaluated)  # fmt: skip
    (root / "bench").mkdir()
    (root / "bench/benchmark.csv").write_text(BENCHMARK)
    (root / "cross").mkdir()
    (root / "cross/crossplay.csv").write_text("agent,a,b\na,1,2\nb,3,4\n")
    (root / "pool").mkdir()
    member = {"name": "m1", "algorithm": "vdn", "split": "train", "seed": 1, "steps": 5, "return_mean": 0.5}
    (root / "pool/pool.json").write_text(json.dumps({"env": "foraging", "members": [member]}))
    return root


@pytest.fixture
def results(made, tmp_path):
    return shutil.copytree(made, tmp_path / "results")


class Site:
    """A server in a process of its own, as a user starts it."""

    def __init__(self, root, *words):
        command = [sys.executable, "-m", "omg", "view", str(root), "--port=0", "--no_browser", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        assert self.address, self.process.communicate()[1]
        deadline = time.monotonic() + 30
        while True:
            try:
                self.get("/")
                return
            except urllib.error.URLError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def get(self, path, **headers):
        """The status and the content of an answer."""
        base = self.address.partition("?")[0].rstrip("/")
        request = urllib.request.Request(base + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def json(self, path, **headers):
        status, body, _ = self.get(path, **headers)
        return status, json.loads(body)

    def close(self):
        self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture
def serve():
    """Starts servers; all are ended with the test."""
    sites = []

    def start(root, *words):
        sites.append(Site(root, *words))
        return sites[-1]

    yield start
    for site in sites:
        site.close()

"""When things go wrong: one sentence, and nothing that was saved is lost. More tries: `benchmarks/faults.py`."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import faults
from omg.cli import main
from omg.opponents.pool import Member, Pool
from omg.utils import checkpoints
from omg.utils.lock import FILE, locked
from omg.utils.settings import UserError

RUN = ["train", "--config=iql", "--env-config=foraging", *faults.SMALL, *faults.BOARD, "--t_max=64"]


def test_a_folder_in_use_is_refused_with_its_owner(tmp_path, capsys):
    with locked(tmp_path), pytest.raises(UserError, match=f"in use by process {os.getpid()} on "), locked(tmp_path):
        pass
    with locked(tmp_path):
        assert main([*RUN, f"--run_dir={tmp_path}"]) == 2
    assert "is in use by process" in capsys.readouterr().err
    (tmp_path / FILE).write_text("\udcff{", errors="surrogateescape")
    with locked(tmp_path):
        pass


def test_a_lock_ends_with_its_owner(tmp_path):
    code = "import sys, time; from pathlib import Path; from omg.utils.lock import locked\n"
    code += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {owner.pid}"), locked(tmp_path):
        pass
    owner.kill()
    owner.wait()
    with locked(tmp_path):
        pass


def test_weights_that_are_not_finite_are_marked_and_the_last_finite_ones_kept(tmp_path):
    """The trainer saves as usual; the first checkpoint with NaN puts the one before it apart."""
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        checkpoints.save(folder, step, {"agent": {"w": jnp.full(2, step)}}, {"finite": step < 3, "seeds": [1]}, keep=1)
        if step == 2:
            kept = checkpoints.set_apart(folder, tmp_path / "last_finite")
    assert kept == tmp_path / "last_finite/2"
    assert checkpoints.verify(kept).manifest["finite"]
    assert checkpoints.set_apart(folder, tmp_path / "last_finite") is None
    assert checkpoints.set_apart(folder, tmp_path / "other") is None, "the only one left is not finite"


def test_a_run_that_diverges_says_so_and_keeps_its_last_finite_checkpoint(tmp_path, capfd, monkeypatch):
    from omg.training.trainer import Trainer

    between = Trainer._between_calls

    def spoil(self, progress):
        between(self, progress)
        if self.counters.t_env >= 40:
            params = jax.tree.map(lambda x: x * np.nan, self.state.learner.params)
            self.state = self.state._replace(learner=self.state.learner._replace(params=params))

    monkeypatch.setattr(Trainer, "_between_calls", spoil)
    words = ["--save_model_interval=16", "--log_interval=16", "--keep_checkpoints=1", "--t_max=128"]
    assert main([*RUN, *words, f"--run_dir={tmp_path / 'run'}"]) == 0
    said = capfd.readouterr().err
    assert "weights are not finite any more" in said
    assert "learning has diverged" in said
    (apart,) = (tmp_path / "run/last_finite").iterdir()
    assert checkpoints.verify(apart).manifest["finite"] is True
    assert checkpoints.find(tmp_path / "run").manifest["finite"] is False
    main(["evaluate", f"--checkpoint_path={tmp_path / 'run'}", "--test_nepisode=0", f"--run_dir={tmp_path / 'e'}"])
    assert "are not finite: learning had diverged" in capfd.readouterr().err


def test_a_digit_in_a_pools_manifest_is_noticed(tmp_path):
    Pool(tmp_path, "foraging", {"food": 3}, [Member("slow", "slow", "train", return_mean=0.25)], {}).save()
    assert Pool.load(tmp_path).members[0].return_mean == 0.25
    path = tmp_path / "pool.json"
    path.write_text(path.read_text().replace("0.25", "0.35"))
    with pytest.raises(UserError, match="damaged"):
        Pool.load(tmp_path)


@pytest.mark.slow
def test_an_altered_configuration_is_not_resumed(tmp_path, capsys):
    run = tmp_path / "run"
    assert main([*RUN, f"--run_dir={run}"]) == 0
    (run / "summary.json").unlink()
    # What may differ on resume may differ from the checkpoint, too.
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("keep_checkpoints: 3", "keep_checkpoints: 4"))
    assert main(["train", "--resume", f"--run_dir={run}"]) == 0
    (run / "summary.json").unlink()
    config.write_text(config.read_text().replace("gamma: 0.99", "gamma: 0.98"))
    assert main(["train", "--resume", f"--run_dir={run}"]) == 2
    assert "was altered: gamma is 0.98, in the checkpoint 0.99" in capsys.readouterr().err


@pytest.mark.parametrize("moment", [0.2, 0.6, 1.0, 1.5, 2.5])
def test_ctrl_c_during_the_start_ends_quietly(moment, tmp_path):
    words = [sys.executable, "-m", "omg", *RUN, f"--run_dir={tmp_path / 'run'}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    # Python itself, before the first line of the program, ends by the signal.
    assert process.returncode in (130, -2), output
    assert "Traceback" not in output or process.returncode == -2 or "site.py" in output
    assert "Fatal Python error" not in output


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("omg.utils.checkpoints.save_file", full)
    assert main([*RUN, f"--run_dir={tmp_path / 'run'}"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device (somewhere)" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_fuzzed_lines_and_forged_manifests_give_no_traceback():
    for kind, count in (("lines", 60), ("forged", 8)):
        found = faults.KINDS[kind][0](count, 3, True)
        assert found["traceback"] == found["wrong"] == 0, kind
        assert found.total() == count


def test_every_kind_of_damage_changes_the_file():
    chance, data = random.Random(1), json.dumps({"a": 12345, "b": [1.5] * 20}).encode()
    seen = {}
    for _ in range(300):
        how, damaged = faults.damages(chance, data)
        seen.setdefault(how, []).append(damaged)
    assert len(seen) == 10
    for how, results in seen.items():
        assert any(result != data for result in results), how

"""A run that is killed and resumed ends with exactly the same parameters as a run that was never stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omg.utils.checkpoints import flatten, steps_in, unflatten

ROOT = Path(__file__).parent.parent
WORDS = "--config=qmix --env-config=two_step --rnn_hidden_dim=8 --hypernet_embed=8 --buffer_size=64 --t_max=2000"
WORDS += " --seeds=2 --optimiser=adam"
WORDS += " --save_model_interval=200 --test_interval=750 --log_interval=250 --use_tensorboard=false"


def start(*words, **options):
    command = [sys.executable, "main.py", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **pipes, **options)


def finish(process, status=0):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == status, out
    return out


def wait_for_checkpoint(folder, process, after=0):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        steps = steps_in(folder / "checkpoints")
        if steps and steps[-1] > after:
            return steps[-1]
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    raise AssertionError("no checkpoint was written in two minutes")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(*WORDS.split(), f"--run_dir={folder}"))
    return folder


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_parameters(undisturbed, tmp_path):
    folder, reached, kills = tmp_path / "run", 0, 0
    process = start(*WORDS.split(), f"--run_dir={folder}")
    while kills < 2:
        reached = wait_for_checkpoint(folder, process, after=reached)
        if reached >= 2000:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        process = start("--resume", f"--run_dir={folder}")
    assert kills == 2
    finish(process)
    for file in ("agent", "mixer", "opt", "target", "replay"):
        one, two = (load_file(f / f"checkpoints/2000/{file}.safetensors") for f in (undisturbed, folder))
        assert one.keys() == two.keys()
        for name in one:
            assert one[name].tobytes() == two[name].tobytes(), f"{file}: {name}"
    lines = [[json.loads(x) for x in (f / "metrics.jsonl").read_text().splitlines()] for f in (undisturbed, folder)]
    assert [p["t_env"] for p in lines[0]] == [p["t_env"] for p in lines[1]]
    # Every number of every row but the time: the sums of the open window are saved with the checkpoint.
    times = [[point.pop("seconds") for point in run] for run in lines]
    assert all(run == sorted(run) for run in times)
    assert lines[0] == lines[1]


def test_sigterm_saves_and_ends_all_processes(tmp_path):
    folder = tmp_path / "run"
    words = [*WORDS.split(), f"--run_dir={folder}", "--t_max=10000000", "--save_model_interval=1000000"]
    process = start(*words, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out = finish(process, status=128 + signal.SIGTERM)
    assert "--resume" in out
    assert out.splitlines()[-1] == str(folder)
    assert len(steps_in(folder / "checkpoints")) == 1
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_damaged_newest_checkpoint_is_skipped(undisturbed, tmp_path, capsys):
    import shutil

    from omg.utils.checkpoints import newest_whole

    copy = tmp_path / "checkpoints"
    shutil.copytree(undisturbed / "checkpoints", copy)
    steps = steps_in(copy)
    (copy / str(steps[-1]) / "opt.safetensors").write_bytes(b"")
    found, complaints = newest_whole(copy)
    assert found is not None
    assert found.t_env == steps[-2]
    assert "opt.safetensors" in complaints[0]


def test_scalars_and_transposed_arrays_are_read_as_they_were_written(tmp_path):
    """Adam's step count is a scalar; a transposed array has another memory layout than its shape suggests."""
    count, moments = jnp.int32(7), np.arange(6.0).reshape(2, 3).T
    save_file(flatten({"count": count, "moments": moments}), tmp_path / "opt.safetensors")
    again = unflatten(load_file(tmp_path / "opt.safetensors"), {"count": count, "moments": moments}, "opt")
    assert np.shape(again["count"]) == ()
    assert again["count"] == 7
    np.testing.assert_array_equal(again["moments"], moments)

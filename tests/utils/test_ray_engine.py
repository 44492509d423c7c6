"""Which files travel to a node of Ray that shares no folder."""

from omg.utils.ray_engine import files_in


def test_files_that_a_command_names_travel_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pools/a=b", "mypool", "foraging", "results/run", "plugins", "package"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("mine.yaml", "corridor.py", "plugins/maze.py"):
        (tmp_path / name).touch()
    words = ["train", "--import", "corridor", "--import=plugins.maze", "--import=package", "--config=mine.yaml"]
    words += ["--env-config=foraging", "--pool=pools/a=b", "--vae_path=mypool", "--run_dir=results/run", "--lr=0.1"]
    words += ["--checkpoint_path=/tmp", "with", "env_args.payoff=[" + "0.1," * 400 + "]"]
    expected = ["corridor.py", "plugins/maze.py", "package", "mine.yaml", "pools/a=b", "mypool"]
    assert [str(path) for path in files_in(words)] == expected

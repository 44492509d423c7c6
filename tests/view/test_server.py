"""What the server of the page answers, and what it refuses."""

import json
import signal

import pytest

from omg.cli import main
from omg.evaluation import plots, runs
from omg.utils.settings import UserError
from omg.view.content import Content


def test_runs_curves_episodes_and_partners_are_those_on_disk(results, serve):
    site = serve(results)
    status, found = site.json("/api/runs")
    assert status == 200
    assert {row["id"]: (row["name"], row["state"]) for row in found["runs"]} == {
        "team": ("iql", "finished"), "focal": ("iql_am", "finished"),
    }  # fmt: skip
    _, curves = site.json("/api/curves?id=team&by=run")
    metric, (expected,) = plots.curves_of([results / "team"], by="run")
    assert curves["metric"] == metric == "test_return_mean"
    assert curves["curves"][0]["x"] == expected.x.tolist()
    assert curves["curves"][0]["mean"] == pytest.approx(runs.mean_and_band(expected.y)[0].tolist(), rel=1e-4)
    assert curves["curves"][0]["seeds"] == 2
    _, listed = site.json("/api/episodes")
    assert {episode["id"] for episode in listed["episodes"]} == {
        "focal/episode.json", "evaluated/episode.json", "evaluated/episodes/tit_for_tat/episode.json",
        "evaluated/episodes/always_defect/episode.json",
    }  # fmt: skip
    _, episode = site.json("/api/episode?id=focal/episode.json")
    assert episode == json.loads((results / "focal/episode.json").read_text())
    _, config = site.json("/api/config?id=team")
    assert config["config"]["seeds"] == 2
    _, partners = site.json("/api/partners")
    base = partners["benchmarks"][0]["tasks"][0]["methods"][1]
    assert (base["method"], base["seeds"], base["score"]) == ("base", 2, pytest.approx(0.6))
    assert partners["crossplay"][0]["values"] == [[1, 2], [3, 4]]
    assert partners["pools"][0]["members"][0]["algorithm"] == "vdn"
    assert "zoo:lbf_7x7" in {pool["id"] for pool in partners["pools"]}
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        status, body, headers = site.get(f"/api/figure?id=team&format={kind}")
        assert (status, body[:4]) == (200, start[:4])
        assert f"curves.{kind}" in headers["Content-Disposition"]


def test_nothing_outside_the_folder_is_read(results, serve):
    (results.parent / "secret").mkdir()
    (results.parent / "secret/metrics.jsonl").write_text('{"t_env": 0}\n')
    (results.parent / "secret/config.yaml").write_text("name: secret\n")
    (results.parent / "secret/episode.json").write_text("{}")
    (results / "link").symlink_to(results.parent / "secret")
    site = serve(results)
    for path in ("../secret", "/etc", "a/../../secret", ".hidden", "link", "..%2fsecret"):
        for what in ("config", "curves"):
            status, found = site.json(f"/api/{what}?id={path}")
            assert status == 400, (what, path)
            assert "error" in found
    for path in ("../secret/episode.json", "link/episode.json", "team/config.yaml", "team/summary.json"):
        assert site.json(f"/api/episode?id={path}")[0] == 400, path
    assert site.get("/static/../server.py")[0] == 404
    assert site.get("/static/%2e%2e/server.py")[0] == 404


def test_only_local_names_are_answered_without_a_token(results, serve):
    site = serve(results)
    assert site.get("/api/runs", Host="attacker.example")[0] == 403
    assert site.get("/api/runs", Host="localhost:1234")[0] == 200
    headers = site.get("/")[2]
    assert "default-src 'self'" in headers["Content-Security-Policy"]


def test_another_address_needs_the_token_that_was_printed(results, serve):
    site = serve(results, "--host=0.0.0.0")
    token = site.address.partition("token=")[2]
    assert len(token) > 16
    assert site.get("/")[0] == 200
    assert site.get("/api/runs")[0] == 403
    assert site.get("/api/runs", **{"X-Token": token[:-1] + "x"})[0] == 403
    assert site.get("/api/runs", **{"X-Token": token})[0] == 200


def test_what_did_not_change_is_not_sent_again(results, serve):
    site = serve(results)
    _, _, headers = site.get("/api/partners")
    assert site.get("/api/partners", **{"If-None-Match": headers["ETag"]})[0] == 304


def test_damaged_files_are_named_and_the_rest_is_shown(results):
    (results / "team/config.yaml").write_bytes(b"\xff\xfe")
    (results / "focal/episode.json").write_text('{"frames": [')
    (results / "bench/benchmark.csv").write_text("task,method\nx,y\n")
    (results / "cross/crossplay.csv").write_text("agent,a,b\na,1\n")
    (results / "pool/pool.json").write_text("[]")
    embeddings = json.loads((results / "evaluated/embeddings.json").read_text())
    embeddings["members"][0]["recorded"] = [1]
    (results / "evaluated/embeddings.json").write_text(json.dumps(embeddings))
    content = Content(results)
    states = {row["id"]: row["state"] for row in content.runs()["runs"]}
    assert states == {"team": "damaged", "focal": "finished"}
    with pytest.raises(UserError, match="damaged"):
        content.episode("focal/episode.json")
    with pytest.raises(UserError, match="damaged"):
        content.config("team")
    partners = content.partners()
    assert {p["id"] for p in partners["problems"]} == {
        "bench/benchmark.csv", "cross/crossplay.csv", "pool/pool.json", "evaluated/embeddings.json",
    }  # fmt: skip


def test_embeddings_of_recorded_episodes(results):
    """Where the file says so, and only while the episode is there; older files do not say it."""
    path = results / "evaluated/embeddings.json"
    content = json.loads(path.read_text())
    first, second = content["members"]
    del first["recorded"]
    (results / "evaluated/episodes" / second["name"] / "episode.json").unlink()
    path.write_text(json.dumps(content))
    (found,) = Content(results).partners()["embeddings"]
    assert [(member["at"], member["recorded"]) for member in found["members"]] == [(None, True), (None, False)]
    path.write_text(json.dumps(content).replace(str(second["points"][0][0]), "1" + "0" * 400, 1))
    assert [p["id"] for p in Content(results).partners()["problems"]] == ["evaluated/embeddings.json"]


def test_numbers_that_are_not_finite_are_sent_as_null(results, serve):
    (results / "team/summary.json").write_text('{"test_return_mean": NaN, "wall_seconds": Infinity}')
    (results / "bench/benchmark.csv").write_text("task,method,partner,seed,return,score\ng,base,x,1,nan,nan\n")
    config = (results / "team/config.yaml").read_text()
    (results / "team/config.yaml").write_text(config + "when: 2026-01-01\nodd: .inf\n")
    site = serve(results)
    status, found = site.json("/api/runs")
    assert (status, next(r["test_return"] for r in found["runs"] if r["id"] == "team")) == (200, None)
    assert site.json("/api/partners")[0] == 200
    assert site.json("/api/config?id=team")[1]["config"]["when"] == "2026-01-01"


def test_a_run_with_a_colon_in_its_name_can_be_opened(results):
    (results / "team").rename(results / "at 12:30")
    assert Content(results).curves(["at 12:30"], None, "run", "steps", 0.0)["curves"][0]["name"] == "at 12:30"


def test_a_run_that_goes_on_is_read_again(results):
    content = Content(results)
    assert next(r for r in content.runs()["runs"] if r["id"] == "team")["steps"] < 10_000
    with (results / "team/metrics.jsonl").open("a") as file:
        file.write('{"t_env": 12345, "test_return_mean": 1.0}\n')
    assert next(r for r in content.runs()["runs"] if r["id"] == "team")["steps"] == 12345


def test_ctrl_c_ends_the_server(results, serve):
    site = serve(results)
    site.process.send_signal(signal.SIGINT)
    _, said = site.process.communicate(timeout=20)
    assert site.process.returncode == 0, said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["a", "b"], "one folder"),
        (["--port=99999"], "between 0 and 65535"),
        (["--prot=3"], "Did you mean"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert main(["view", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_port_that_is_taken_is_said(tmp_path, capsys):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["view", str(tmp_path), f"--port={other.getsockname()[1]}", "--no_browser"]) == 2
    assert "Choose another --port" in " ".join(capsys.readouterr().err.split())

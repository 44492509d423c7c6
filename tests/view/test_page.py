"""The page in a real browser: every tab, live, with what is recorded on disk."""

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from omg.envs.grid import COLOURS, board
from omg.evaluation.episode import Episode, Imagined, Moments, Rows
from omg.view.content import Content

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed: the page is not tested in a browser (apt install chromium)", True)
sync_api = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page on which an error of JavaScript fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(15_000)
    yield page
    context.close()
    assert not errors


def test_every_tab_shows_the_runs_that_were_made(results, serve, page):
    site = serve(results)
    page.goto(site.address)
    page.wait_for_selector("tr[data-id=team]")
    assert "2 of 2 runs" in page.inner_text("[role=status]")
    summary = json.loads((results / "team/summary.json").read_text())
    shown = float(page.inner_text("tr[data-id=team] td:nth-child(8)"))
    assert shown == pytest.approx(summary["test_return_mean"], abs=1e-3)
    page.fill("input[type=search]", "prisoners")
    page.wait_for_selector("tr[data-id=team]", state="detached")
    page.fill("input[type=search]", "")
    for name in ("team", "focal"):
        page.check(f"tr[data-id={name}] input")
    page.click("button:text('Configurations')")
    page.wait_for_selector("#configurations td:text-is('env_config')")
    assert "settings differ" in page.inner_text("#configurations h2")
    page.click("button:text('Curves')")
    page.wait_for_selector("#plot canvas")
    assert "iql on two_step (2 seeds)" in page.inner_text("#plot")
    page.click("nav a:text('Episodes')")
    page.wait_for_selector("canvas.board")
    page.click("nav a:text('Partners')")
    page.wait_for_selector("table.benchmark")
    assert "[0.500, 0.700]" in page.inner_text("table.benchmark")
    assert page.inner_text("table.heat tbody tr:last-child td:last-child") == "4"
    assert "vdn" in page.inner_text("main")
    assert "--pool=zoo:lbf_7x7" in page.inner_text("main")


def test_curves_are_exported(results, serve, page):
    site = serve(results)
    page.goto(site.address + "#curves?id=team")
    page.wait_for_selector("#plot canvas")
    for kind in ("PNG", "SVG", "CSV"):
        with page.expect_download() as waiting:
            page.click(f"button:text-is('{kind}')")
        assert waiting.value.suggested_filename == f"curves.{kind.lower()}"
    lines = waiting.value.path().read_text().splitlines()
    points = [json.loads(line) for line in (results / "team/metrics.jsonl").read_text().splitlines()]
    tests = [p for p in points if "test_return_mean" in p]
    assert lines[0] == "curve,steps,mean,low,high"
    assert [float(line.split(",")[-3]) for line in lines[1:]] == pytest.approx(
        [p["test_return_mean"] for p in tests], rel=1e-4
    )


def bars(page, seat):
    found = page.eval_on_selector_all(
        f".row[data-seat='{seat}'] .bin",
        "bins => bins.map(b => [b.dataset.value, b.querySelector('.fill').style.height])",
    )
    return [(float(value) if value else None, float(height.rstrip("%"))) for value, height in found]


def test_predictions_beside_the_board_are_those_of_the_episode(results, serve, page):
    site = serve(results)
    episode = json.loads((results / "focal/episode.json").read_text())
    predicted = next(entry for entry in episode["shown"] if entry["title"] == "predicted next action")
    page.goto(site.address + "#episodes?id=focal/episode.json")
    page.wait_for_selector("canvas.board")
    for step in (0, 3, 5):
        page.eval_on_selector(
            "input[aria-label=step]",
            "(slider, step) => { slider.value = step; slider.dispatchEvent(new Event('input')); }", step,
        )  # fmt: skip
        assert page.get_attribute("canvas.board", "data-step") == str(step)
        shown = bars(page, 1)
        assert [value for value, _ in shown] == predicted["values"][step][0]
        assert [height for _, height in shown] == pytest.approx([max(100 * v, 1) for v, _ in shown], abs=0.1)
        taken = page.eval_on_selector_all(".row[data-seat='1'] .bin", "b => b.map(x => x.classList.contains('taken'))")
        assert taken.index(True) == predicted["taken"][step][0]
        assert float(page.inner_text("#team-return")) == pytest.approx(episode["team_return"][step], abs=0.01)


def test_the_episode_of_the_partner_under_the_pointer_plays(results, serve, page):
    """The recorded episodes lie in two corners, where the pointer finds them."""
    path = results / "evaluated/embeddings.json"
    content = json.loads(path.read_text())
    by_name = {member["name"]: member for member in content["members"]}
    assert set(by_name) == {"tit_for_tat", "always_defect"}
    for name, corner in (("tit_for_tat", 0), ("always_defect", 1)):
        assert np.isfinite(by_name[name]["recorded"]).all()
        by_name[name] |= {"points": [[0.5, 0.5]], "recorded": [corner, corner]}
    path.write_text(json.dumps(content))
    site = serve(results)
    page.goto(site.address + "#partners")
    box = page.wait_for_selector("canvas.scatter").bounding_box()
    scale = box["width"] / 420
    page.mouse.move(box["x"] + 14 * scale, box["y"] + (420 - 14) * scale)
    page.wait_for_selector("canvas.scatter[data-partner=tit_for_tat]")
    preview = page.wait_for_selector("canvas[data-step='2']").bounding_box()
    assert preview["height"] == pytest.approx(preview["width"], rel=0.02), "a matrix game is drawn on a square"
    page.mouse.move(box["x"] + (420 - 14) * scale, box["y"] + 14 * scale)
    page.wait_for_selector("canvas.scatter[data-partner=always_defect]")
    page.mouse.click(box["x"] + (420 - 14) * scale, box["y"] + 14 * scale)
    page.wait_for_selector("canvas.board")
    assert "always_defect" in page.inner_text(".seats")


@pytest.fixture
def with_beliefs(results):
    """An episode of four steps with beliefs over three goals, a subgoal, and limited sight."""
    scenes = []
    for t in range(5):
        scene = board(5)
        scene.disc(20 + 40 * t, 20, 10, COLOURS[0])
        scene.sights = [["rectangle", 0, 0, 40 * (t + 1), 80], ["disc", 100, 100, 40]]
        scenes.append(scene)
    ghosts = [board(5) for _ in range(4)]
    for t, scene in enumerate(ghosts):
        scene.disc(20, 20 + 40 * t, 10, COLOURS[1])
    beliefs = np.random.default_rng(0).dirichlet(np.ones(3), (4, 2))
    alive = np.array([[1, 1], [1, 1], [1, 0], [1, 0]])
    shown = [Rows("belief about each co-player's goal", [0, 1], ["hare", "stag", "none"], beliefs, alive),
             Moments("hindsight choice", np.array([2, 3, 3, 4]), True),
             Imagined("inferred subgoal, decoded", ghosts)]  # fmt: skip
    rewards = np.array([[0, 1], [0, 0], [2, 0], [0, 0]], float)
    Episode("stag_hunt", ["hop", "<b>partner</b>"], list(COLOURS[:2]), ["stay", "go"], scenes, np.zeros((4, 2), int),
            rewards, alive > 0, np.array([0, 1, 1, 3, 3.0]), False, 0, shown).save(results / "hop")  # fmt: skip
    return results, beliefs


def test_belief_bars_equal_the_recorded_numbers_while_one_scrubs(with_beliefs, serve, page):
    results, beliefs = with_beliefs
    site = serve(results)
    page.goto(site.address + "#episodes?id=hop/episode.json")
    page.wait_for_selector("canvas.board")
    for step in range(4):
        for seat in (0, 1):
            values = [value for value, _ in bars(page, seat)]
            np.testing.assert_allclose(values, beliefs[step, seat], atol=1e-5)
        assert page.get_attribute("figure canvas", "data-target") == str([2, 3, 3, 4][step])
        page.keyboard.press("ArrowRight")
    assert "has left" not in page.inner_text(".seats"), "after the last action nobody acts"
    page.keyboard.press("ArrowLeft")
    assert "has left" in page.inner_text(".seats")
    assert page.evaluate("document.querySelector('.row[data-seat=\"1\"]').classList.contains('dead')")


def test_the_decoded_subgoal_is_drawn_beside_the_board(with_beliefs, serve, page):
    results, _ = with_beliefs
    site = serve(results)
    page.goto(site.address + "#episodes?id=hop/episode.json")
    page.wait_for_selector("canvas.board")
    at = """([x, y]) => { const c = document.querySelectorAll('figure canvas')[1], r = c.width / 201;
      return [...c.getContext('2d').getImageData(x * r, y * r, 1, 1).data].slice(0, 3); }"""
    for step in range(4):
        assert page.evaluate(at, [20, 20 + 40 * step]) == list(COLOURS[1])
        assert page.evaluate(at, [20, 20 + 40 * ((step + 2) % 4)]) != list(COLOURS[1])
        page.keyboard.press("ArrowRight")
    assert "inferred subgoal, decoded" in page.inner_text(".moments")


def test_an_agents_point_of_view_dims_what_it_does_not_see(with_beliefs, serve, page):
    results, _ = with_beliefs
    site = serve(results)
    page.goto(site.address + "#episodes?id=hop/episode.json")
    page.wait_for_selector("canvas.board")
    pixel = """([x, y]) => { const c = document.querySelector('canvas.board'), r = c.width / 201;
      return [...c.getContext('2d').getImageData(x * r, y * r, 1, 1).data].slice(0, 3); }"""
    before = page.evaluate(pixel, [150, 150])
    page.click(".seat:first-child")
    assert page.evaluate(pixel, [150, 150]) != before
    assert page.evaluate(pixel, [10, 60]) == before, "inside its sight nothing changes"
    page.click(".seat:first-child")
    assert page.evaluate(pixel, [150, 150]) == before
    # On the board of 201 pixels: the second agent sees a disc around (100, 100), where it is.
    size = page.locator("canvas.board").bounding_box()["width"] / 201
    page.click("canvas.board", position={"x": 105 * size, "y": 95 * size})
    assert page.get_attribute(".seat:nth-child(2)", "aria-pressed") == "true"
    assert page.evaluate(pixel, [10, 60]) != before
    page.click("canvas.board", position={"x": 180 * size, "y": 180 * size})
    assert page.get_attribute(".seat:nth-child(2)", "aria-pressed") == "true", "no agent is there"


def test_playing_ends_at_the_last_step(with_beliefs, serve, page):
    results, _ = with_beliefs
    site = serve(results)
    page.goto(site.address + "#episodes?id=hop/episode.json")
    page.select_option("select[aria-label=speed]", "80")
    page.click("button[aria-label=play]")
    page.wait_for_selector("canvas.board[data-step='4']")
    page.wait_for_selector("button[aria-label=play]")


def test_html_in_a_name_is_shown_as_text(with_beliefs, serve, page):
    results, _ = with_beliefs
    name = "<img src=x onerror=alert(1)>"
    config = {"name": "<script>alert(2)</script>", "env_config": "<b>x</b>", "seed": 1}
    (results / name).mkdir()
    (results / name / "config.yaml").write_text(yaml.safe_dump(config))
    (results / name / "metrics.jsonl").write_text('{"t_env": 1, "loss": 1.0}\n')
    said = []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    site = serve(results)
    page.goto(site.address)
    page.wait_for_selector(f"td:text-is('{name}')")
    assert config["name"] in page.inner_text("tbody")
    page.check("tr:has(td.path:text('onerror')) input")
    page.click("button:text('Configurations')")
    page.wait_for_selector("#configurations table")
    page.click("button:text('Curves')")
    page.wait_for_selector("#plot canvas")
    assert "<b>x</b>" in page.inner_text("#plot")
    page.goto(site.address + "#episodes?id=hop/episode.json")
    page.wait_for_selector(".seat")
    assert "<b>partner</b>" in page.inner_text(".seats")
    assert page.query_selector("main img, main script, main b:text-is('partner')") is None
    assert not said


def test_an_empty_folder_says_what_to_do(tmp_path, serve, page):
    site = serve(tmp_path)
    for tab, command in (("runs", "omg train"), ("episodes", "--save_replay")):
        page.goto(site.address + f"#{tab}")
        page.wait_for_selector(f"code:text('{command}')")
    page.goto(site.address + "#curves")
    page.wait_for_selector("text=No runs to draw yet")


def test_a_broken_run_is_shown_beside_the_others(results, serve, page):
    (results / "team/metrics.jsonl").write_text("not json\n{}\n")
    (results / "focal/episode.json").write_text("{")
    site = serve(results)
    page.goto(site.address)
    page.wait_for_selector("tr[data-id=team] .state.damaged")
    page.wait_for_selector("tr[data-id=focal] .state.finished")
    page.goto(site.address + "#curves?id=team")
    page.wait_for_selector("#problem:text('damaged')")
    page.goto(site.address + "#episodes")
    page.wait_for_selector("#problem:text('damaged')")
    page.click("nav a:text('Runs')")
    page.wait_for_selector("#problem", state="hidden")


def test_the_table_follows_a_training_that_goes_on(results, serve, page):
    site = serve(results)
    page.goto(site.address)
    page.wait_for_selector("tr[data-id=team]")
    words = ["train", "--config=iql", "--env-config=two_step", "--t_max=100000000", "--log_interval=100",
             "--batch_size=4", "--test_interval=1000000", "--rnn_hidden_dim=4", "--batch_size_run=2",
             "--buffer_size=16", "--seeds=2", "--use_tensorboard=false",
             "--test_nepisode=4", f"--run_dir={results / 'live'}"]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "omg", *words], stderr=subprocess.DEVNULL)
    try:
        page.wait_for_selector("tr[data-id=live] .state.running", timeout=90_000)
        seen, deadline = set(), time.monotonic() + 60
        while len(seen) < 3:
            assert time.monotonic() < deadline, seen
            seen.add(page.inner_text("tr[data-id=live] td:nth-child(7)"))
            page.wait_for_timeout(300)
    finally:
        process.kill()
        process.wait()


def test_500_runs_are_painted_within_two_seconds_and_memory_stays_flat(results, serve, page, monkeypatch):
    config = (results / "team/config.yaml").read_text()
    points = (results / "team/metrics.jsonl").read_text()
    for i in range(500):
        folder = results / f"many/run_{i}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config)
        (folder / "metrics.jsonl").write_text(points)
        if i % 2:
            (folder / "summary.json").write_text('{"test_return_mean": 1.0}')
    site = serve(results)
    started = time.perf_counter()
    page.goto(site.address)
    page.wait_for_selector("nav a[aria-current]")
    assert time.perf_counter() - started < 2, "first paint"
    page.wait_for_selector("tr[data-id='many/run_499']")
    assert time.perf_counter() - started < 6, "the whole table"
    content = Content(results)
    first = content.runs()
    monkeypatch.setattr("omg.view.content.runs.read", lambda folder: pytest.fail(f"{folder} is read again"))
    assert content.runs() == first, "also those that stopped"
    monkeypatch.undo()
    heap = "performance.memory.usedJSHeapSize"
    page.wait_for_timeout(2500)
    before, nodes = page.evaluate(heap), page.evaluate("document.querySelectorAll('*').length")
    page.wait_for_timeout(7000)
    assert page.evaluate(heap) < before + 8e6
    assert page.evaluate("document.querySelectorAll('*').length") == nodes


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (800, "light"), (800, "dark")])
def test_no_tab_is_wider_than_the_window(with_beliefs, serve, page, width, theme):
    results, _ = with_beliefs
    site = serve(results)
    page.set_viewport_size({"width": width, "height": 800})
    page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
    for tab, ready in (
        ("runs", "tr[data-id=team]"),
        ("curves", "#plot canvas"),
        ("episodes", "canvas.board"),
        ("partners", "table"),
    ):
        page.goto(site.address + f"#{tab}")
        page.wait_for_selector(ready)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != theme

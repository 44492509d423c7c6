"""Pictures of the documentation.

`python benchmarks/screenshots.py make RESULTS` trains and tests what they show (a quarter of an hour on two cores), and
copies the animations of an episode of HOP and of a battle. `python benchmarks/screenshots.py RESULTS [FOLDER]` takes
pictures of the page in the browser: every tab at 1280 pixels, light; with a FOLDER at 1280 and 800 pixels, light and
dark, into that folder. Needs Playwright and Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent.parent / "docs" / "images"
READY = {"runs": "tbody tr[data-id]", "curves": "#plot canvas", "episodes": "canvas.board", "partners": "table"}
STEP = 2
"""The step of the episode that is shown."""
EPISODE = "adapt_hop/episode.json"
HOP = [
    "--batch_size_run=64",
    "--batch_size=32",
    "--updates_per_iteration=128",
    "--train_simulations=16",
    "--t_max=6000",
]
COMMANDS = {
    "iql": ["train", "--config=iql", "--env-config=foraging", "--t_max=40000", "--seeds=3"],
    "vdn": ["train", "--config=vdn", "--env-config=foraging", "--t_max=40000", "--seeds=3"],
    "hop": ["train", "--config=hop", "--env-config=stag_hunt", "--pool=rules", *HOP, "--train_goal_draws=1"],
    "adapt_hop": ["adapt", "--checkpoint_path={}/hop", "--pool=rules", "--co_players=[nearest_prey]", "--save_replay",
                  "--adapt_episodes=4", "--test_nepisode=8", "--seed=3"],
    "bench": ["benchmark", "prisoners_dilemma", "--budget=tiny", "--methods=base,liam"],
    "embeddings": ["evaluate", "--checkpoint_path=zoo:prisoners_dilemma/liam", "--pool=zoo:prisoners_dilemma",
                   "--save_replay"],
}  # fmt: skip
"""What the pictures show, in the order in which it is made."""


def make(results: str) -> None:
    for name, words in COMMANDS.items():
        if (Path(results) / name).exists():
            continue  # made by an earlier call
        command = [
            sys.executable,
            "-m",
            "omg",
            *(word.format(results) for word in words),
            f"--run_dir={results}/{name}",
        ]
        print(" ".join(command[2:]), flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.copy(next(Path(results).glob("adapt_hop/*.gif")), DOCS / "beliefs.gif")
    draw_battle(Path(results))


def draw_battle(results: Path) -> None:
    """2c_vs_64zg with the scripted policy `kite`."""
    import jax

    from omg.controllers.scripted_controller import ScriptedMAC
    from omg.envs import make as make_env
    from omg.evaluation.recording import record_team
    from omg.evaluation.replay import save_replay
    from omg.opponents import REGISTRY

    env = make_env("battle", map_name="2c_vs_64zg")
    mac = ScriptedMAC(env.spec, REGISTRY["battle"]["kite"](env.spec))
    folder = results / "battle"
    folder.mkdir(exist_ok=True)
    shutil.copy(save_replay(record_team(env, mac, None, jax.random.key(0), "kite"), folder / "battle.gif"), DOCS)


def main(results: str, folder: str | None = None) -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        sys.exit("no Chromium is installed.")
    command = [sys.executable, "-m", "omg", "view", results, "--port=0", "--no_browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip().rstrip("/")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            looks = [(1280, "light")] if folder is None else [(w, t) for w in (1280, 800) for t in ("light", "dark")]
            for width, theme in looks:
                page = browser.new_page(viewport={"width": width, "height": 860})
                page.add_init_script(f"localStorage.setItem('theme', '{theme}')")
                for tab in READY:
                    show(page, address, tab)
                    name = f"view_{tab}.png" if folder is None else f"{tab}_{width}_{theme}.png"
                    page.screenshot(path=(DOCS if folder is None else Path(folder)) / name)
    finally:
        server.terminate()
        server.wait()


def show(page: Page, address: str, tab: str) -> None:
    there = tab == "episodes" and EPISODE in page.request.get(f"{address}/api/episodes").text()
    page.goto(f"{address}/#{tab}" + (f"?id={EPISODE}" if there else ""))
    page.wait_for_selector(READY[tab])
    if tab == "curves":
        page.select_option("select[aria-label=groups]", "config")
    if tab == "episodes":
        for _ in range(STEP):
            page.keyboard.press("ArrowRight")
    page.wait_for_timeout(600)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    make(sys.argv[2]) if sys.argv[1] == "make" else main(*sys.argv[1:])

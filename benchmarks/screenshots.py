"""Pictures of the page in the browser for the documentation: `python benchmarks/screenshots.py RESULTS [FOLDER]`.

Every tab at 1280 pixels, light; with a FOLDER also at 800 pixels and dark. Needs Playwright and Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent.parent / "docs" / "images"
READY = {"runs": "tbody tr[data-id]", "curves": "#plot canvas", "episodes": "canvas.board", "partners": "table"}
STEP = 5
"""The step of the episode that is shown."""


def main(results: str, folder: str | None = None) -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        sys.exit("no Chromium is installed.")
    command = [sys.executable, "-m", "omg", "view", results, "--port=0", "--no_browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
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
    page.goto(f"{address}#{tab}")
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
    main(*sys.argv[1:])

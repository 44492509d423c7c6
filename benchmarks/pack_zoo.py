"""Packs what `omg benchmark TASK… --new_partners --budget=paper --run_dir=DIR` made into the package's zoo.

`python benchmarks/pack_zoo.py DIR lbf_7x7 prisoners_dilemma [--agents=base,liam]` prints the size of each task. The
zoo may take 15 MB in all.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from omg.opponents import zoo
from omg.utils.settings import UserError


def main(folder: Path, tasks: list[str], methods: list[str]) -> int:
    for task in tasks:
        print(f"{task}: {zoo.pack(folder / task, task, methods) / 1e6:.2f} MB")
    whole = sum(path.stat().st_size for path in zoo.ROOT.rglob("*") if path.is_file())
    print(f"the zoo: {whole / 1e6:.2f} of {zoo.LIMIT / 1e6:.0f} MB")
    return int(whole > zoo.LIMIT)


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    agents = next((word.removeprefix("--agents=") for word in sys.argv if word.startswith("--agents=")), "base,liam")
    if len(named) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(Path(named[0]), named[1:], [agent for agent in agents.split(",") if agent]))
    except UserError as error:
        sys.exit(str(error))

"""The house: no circles among imports, and nothing stands on what drives it."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "omg"


def modules():
    return {".".join(("omg", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): p
            for p in PACKAGE.rglob("*.py")}  # fmt: skip


def imports(path, known):
    """Modules of ours that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("omg"):
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else node.module for a in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("omg")}
    return found


def test_imports_form_no_circle():
    known = modules()
    graph = {name: imports(path, known) - {name} for name, path in known.items()}
    done: set[str] = set()

    def visit(name, path):
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_nothing_imports_what_drives_it():
    known = modules()
    for name, path in known.items():
        drivers = imports(path, known) & {"omg.run", "omg.cli"}
        allowed = {"omg.cli": {"omg.run"}, "omg.__main__": {"omg.cli"}}.get(name, set())
        assert drivers <= allowed, f"{name} imports {drivers}"


def test_every_folder_of_parts_has_a_registry():
    import importlib

    for name in ("runners", "controllers", "learners", "envs", "modules.agents", "modules.am", "modules.mixers",
                 "modules.critics", "opponents"):  # fmt: skip
        assert importlib.import_module(f"omg.{name}").REGISTRY, name


def test_no_file_has_grown_past_its_seam():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path


def test_nothing_touches_a_device_when_it_is_imported():
    """A worker's process, or `--use_cuda=false`, chooses its device after the imports."""
    code = (
        "import omg.run, omg.runners.workers, omg.envs.predator_prey\n"
        "from jax._src.xla_bridge import backends_are_initialized\n"
        "raise SystemExit(backends_are_initialized())"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode == 0

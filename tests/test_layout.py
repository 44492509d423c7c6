"""The layout of the package: modules at its root, direction of imports, sizes of files, files one iteration enters."""

import ast
import builtins
import importlib
import re
import subprocess
import symtable
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import omg
from omg.build import build
from omg.commands.bench import stand_ins
from tests.helpers import configuration

PACKAGE = Path(omg.__file__).parent
ORDER = (
    ("cli", "api"), ("commands",), ("view",), ("build",), ("training", "evaluation", "artifacts"),
    ("learners", "runners", "opponents"), ("controllers",), ("modules",), ("components",), ("envs",), ("config",),
    ("utils",),
)  # fmt: skip
"""A module imports modules of its own group or of later ones."""


def modules():
    """Every module of the package by name."""
    return {".".join(("omg", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): p
            for p in PACKAGE.rglob("*.py")}  # fmt: skip


def imports(path, known):
    """Modules of the package that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "omg":
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else node.module for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] == "omg"}
    return found


def rank(name):
    """The place of a module in `ORDER`; None: the package itself and its entry point, which stand outside."""
    place = name.removeprefix("omg").removeprefix(".").split(".")[0]
    if place in ("", "__main__"):
        return None
    return next(i for i, group in enumerate(ORDER) if place in group)


def test_the_root_of_the_package_holds_only_the_modules_of_the_layout():
    names = {path.stem for path in PACKAGE.glob("*.py")}
    assert names == {"__init__", "__main__", "api", "cli", "config", "build", "artifacts"}


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


def test_imports_run_in_one_direction():
    known = modules()
    wrong = []
    for name, path in known.items():
        for other in imports(path, known):
            own, target = rank(name), rank(other)
            if own is not None and target is not None and target < own:
                wrong.append(f"{name} imports {other}")
            if own is not None and other == "omg.__main__":
                wrong.append(f"{name} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_only_the_entry_point_imports_the_command_line():
    known = modules()
    assert {name for name, path in known.items() if "omg.cli" in imports(path, known)} == {"omg.__main__"}


def test_a_command_imports_no_other_command():
    known = modules()
    shared = {"omg.commands", "omg.commands.common", "omg.commands.stages"}
    for name, path in known.items():
        if name.startswith("omg.commands"):
            others = {other for other in imports(path, known) if other.startswith("omg.commands")}
            assert others <= shared, f"{name} imports {others - shared}"


def test_utilities_do_not_know_environments():
    known = modules()
    for name, path in known.items():
        if name.startswith("omg.utils"):
            assert not [other for other in imports(path, known) if other.startswith("omg.envs")], name


def test_the_reader_of_imports_sees_every_form(tmp_path):
    """Otherwise the tests above would pass on an empty set."""
    file = tmp_path / "x.py"
    file.write_text("import omg.build\ndef f():\n    from omg.utils import files\n    from omg.cli import main\n")
    assert imports(file, modules()) == {"omg.build", "omg.utils.files", "omg.cli"}
    assert rank("omg.cli") < rank("omg.commands.train") < rank("omg.artifacts") == rank("omg.training.loop")


def test_every_folder_of_components_has_a_registry():
    for name in ("runners", "controllers", "learners", "envs", "modules.agents", "modules.am", "modules.mixers",
                 "modules.critics", "opponents"):  # fmt: skip
        assert importlib.import_module(f"omg.{name}").REGISTRY, name


def test_no_file_has_more_than_350_lines():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path


def test_capabilities_are_attributes_and_not_guessed_from_names():
    guesses = re.compile(r"""getattr\(mac, ["']plans|["']hop["'] in str\(|(?<!for )\balg (not )?in \(""")
    for path in PACKAGE.rglob("*.py"):
        assert not guesses.search(path.read_text()), path


def entered(function):
    """The files of the package whose functions are called while `function` runs."""
    found = set()

    def note(frame, event, _):
        # Code at the top of a module runs when it is imported, which is not part of what is followed here.
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return {str(Path(file).relative_to(PACKAGE)) for file in found if Path(file).is_relative_to(PACKAGE)}


def test_one_iteration_of_omg_enters_at_most_16_files():
    """Collect, insert, sample, update, as a reader follows them through the code."""
    config = configuration("iql_omg", "foraging", pool="untrained", length_buckets=1)
    loop = build(config, stand_ins(config, 2)).loop
    state = jax.eval_shape(loop.init)

    def iteration(state, number, test_mode):
        return loop._iteration(state, loop.keys, number, loop.runner.policies, test_mode, number)

    files = entered(lambda: jax.eval_shape(iteration, state, jnp.int32(0), jnp.asarray(False)))
    core = {"training/loop.py", "runners/team_runner.py", "learners/q_learner_4am.py", "modules/am/omg_am.py",
            "envs/foraging.py"}  # fmt: skip
    assert core <= files, sorted(files)
    assert len(files) <= 16, f"{len(files)} files:\n" + "\n".join(sorted(files))


def test_nothing_touches_a_device_when_it_is_imported():
    """A worker's process, or `--use_cuda=false`, chooses its device after the imports."""
    code = (
        "import omg.cli, omg.commands.train, omg.commands.adapt, omg.runners.workers, omg.envs.predator_prey\n"
        "from jax._src.xla_bridge import backends_are_initialized\n"
        "raise SystemExit(backends_are_initialized())"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode == 0


def undefined(text: str) -> set[str]:
    """Names that functions use and the module does not define; annotations, which hold shapes, do not count."""
    top = symtable.symtable(text, "module", "exec")
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    known = own | {*dir(builtins), "__file__"}

    def scopes(table):
        yield table
        for inner in table.get_children():
            yield from scopes(inner)

    used = (s for table in scopes(top) for s in table.get_symbols() if s.is_global() and s.is_referenced())
    return {s.get_name() for s in used} - known


def test_every_name_is_defined():
    """Linter and type checker do not see undefined names: shapes of arrays look like them."""
    assert undefined("from __future__ import annotations\ndef f(x: agent):\n    return COLOURS + len(x)") == {"COLOURS"}
    places = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").glob("*.py"), PACKAGE.parent / "main.py"]
    assert {str(path): found for path in places if (found := undefined(path.read_text()))} == {}

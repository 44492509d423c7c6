"""Which modules may be imported because a configuration names them.

Importing a module executes its code. Configurations come from files (checkpoints, pools, YAML of other people), so a
name in a file must not cause an import by itself: only modules that the user typed, and a few known packages, are
imported.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path

from omg.utils.settings import UserError

KNOWN_PACKAGES = ("pettingzoo", "mpe2", "shimmy", "meltingpot", "magent2")
"""Packages of environments that need no permission where they are installed in site-packages."""

_allowed: set[str] = set()


def allow(module: str) -> None:
    """Permits the import of a module. To be called only with names that the user typed."""
    _allowed.add(module)


def allowed() -> tuple[str, ...]:
    """The modules that were permitted, for processes that have to permit the same ones."""
    return tuple(sorted(_allowed))


def check(module: str) -> None:
    """Raises a UserError unless the module may be imported. Imports nothing itself.

    Args:
        module: the dotted name of a module. It may be imported if `allow` was called with this name, or if its
            top-level package is one of `KNOWN_PACKAGES` and is installed in site-packages.
    """
    if module in _allowed:
        return
    package = module.partition(".")[0]
    if package not in KNOWN_PACKAGES:
        raise UserError(f"the module {module!r} is not imported, because {_remedy(module)}")
    found = find(package)
    if found is None:
        raise UserError(f"the package {package} is not installed: pip install {package}.")
    if not in_site_packages(found):
        raise UserError(
            f"the module {module!r} is not imported: {package} is {_location(found)}, not an installed package; "
            f"{_remedy(module)}"
        )


def find(package: str) -> ModuleSpec | None:
    """Where Python would import a top-level package from. Does not execute the package's code."""
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None


def in_current_folder(package: str) -> bool:
    """Whether Python would import a top-level package from the current folder."""
    spec = find(package)
    folder = parent_folder(spec) if spec else None
    return folder is not None and folder.resolve() == Path.cwd().resolve()


def in_site_packages(spec: ModuleSpec) -> bool:
    """Whether a top-level package is installed in a folder for installed packages, and not in the current folder."""
    folder = parent_folder(spec)
    if folder is None or folder.resolve() == Path.cwd().resolve():
        return False
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return folder.resolve() in installed or folder.name in ("site-packages", "dist-packages")


def parent_folder(spec: ModuleSpec) -> Path | None:
    """The folder that contains a top-level module or package; None for built-in modules."""
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).absolute().parent
    return Path(spec.origin).absolute().parent if spec.has_location and spec.origin else None


def _location(spec: ModuleSpec) -> str:
    return spec.origin or str(parent_folder(spec))


def _remedy(module: str) -> str:
    return (
        "a configuration file may not start code by itself. If you trust the module, name it on the command line "
        f"(with env_args.name={module}) or add --trust; in Python, call omg.envs.trust.allow({module!r})."
    )

"""The type checker that `conftest.py` applies to every function of the package: array shapes and types.

Only annotations that name an array shape are checked (`Float[Array, "time batch"]`, also inside tuples and unions), so
that tests may pass small stand-ins for networks and environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

# As for mypy, a whole number is also a float.
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable) -> Callable:
    """The function with checks of its annotated arrays. One without annotated arrays is returned as it is."""
    hints = {name: hint for name, hint in function.__annotations__.items() if names_an_array(hint)}
    if not hints:
        return function
    function.__annotations__ = {name: hints.get(name, Any) for name in function.__annotations__}
    return _beartype(function)


def names_an_array(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(names_an_array(part) for part in get_args(hint))

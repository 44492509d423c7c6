"""Array annotations are promises: every one can be evaluated, and the suite checks them."""

import ast
import importlib
from pathlib import Path

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

import omg
from omg.learners import td
from tests.annotations import names_an_array

PACKAGE = Path(omg.__file__).parent
SHAPES = ("Float[", "Int[", "Bool[", "Shaped[", "Key[")


def annotations_of(file: Path) -> list[ast.expr]:
    """Annotations of arguments, results and fields that name the shape of an array, inner functions included."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.returns)
    return [x for x in found if x is not None and any(shape in ast.unparse(x) for shape in SHAPES)]


@pytest.mark.parametrize("file", [f for f in sorted(PACKAGE.rglob("*.py")) if annotations_of(f)], ids=lambda f: f.stem)
def test_every_array_annotation_can_be_evaluated(file):
    """jaxtyping silently ignores an annotation that cannot."""
    module = importlib.import_module(".".join(("omg", *file.relative_to(PACKAGE).with_suffix("").parts)))
    for annotation in annotations_of(file):
        text = ast.unparse(annotation)
        assert names_an_array(eval(text, vars(module))) or text.startswith("Callable"), text


def test_an_array_of_another_shape_or_type_is_refused():
    three, two = jnp.zeros(3), jnp.zeros(2)
    td.td_loss(three, three, three)
    with pytest.raises(TypeCheckError, match="targets"):
        td.td_loss(three, two, three)
    with pytest.raises(TypeCheckError, match="mask"):
        td.td_loss(three, three, jnp.ones(3, bool))

"""The package's own types are complete: a type checker of a user infers none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pagequeue

PACKAGE = Path(pagequeue.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def declared(kind: ast.ClassDef) -> set[str]:
    """Return the names that the body of a class declares."""
    return {
        node.target.id
        for node in kind.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def attributes(target: ast.expr) -> list[str]:
    """Return the public attributes of self that an assignment sets."""
    if isinstance(target, ast.Tuple):
        return [name for one in target.elts for name in attributes(one)]
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
    if is_own and target.value.id == "self" and not target.attr.startswith("_"):  # type: ignore[attr-defined]
        return [target.attr]  # type: ignore[attr-defined]
    return []


def untyped(kind: ast.ClassDef) -> set[str]:
    """Return the attributes that `__init__` sets to something whose type has to be inferred."""
    found: set[str] = set()
    for method in kind.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
            continue
        arguments = {one.arg for one in [*method.args.args, *method.args.kwonlyargs]}
        for node in ast.walk(method):
            if not isinstance(node, ast.Assign):
                continue
            is_argument = isinstance(node.value, ast.Name) and node.value.id in arguments
            if not is_argument and not isinstance(node.value, ast.Constant):
                found |= {name for target in node.targets for name in attributes(target)}
        found -= {
            node.target.attr
            for node in ast.walk(method)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        }
    return found - declared(kind)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_public_attributes_have_a_type(path: Path) -> None:
    """What checkers infer differs between them, so `pyright --verifytypes` counts it as unknown."""
    classes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    found = {
        f"{kind.name}.{name}" for kind in classes if kind.name[0] != "_" for name in untyped(kind)
    }
    assert found == set()

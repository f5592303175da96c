"""Control flows where imports flow: no module fills an attribute of an object of a lower package.

A lower object that an upper one fills after its birth is a call upward that no import shows. What
it needs is an argument of its making, an argument of the call, or the policy of its store.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pagequeue

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(pagequeue.__file__).parent
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
FOREIGN = {
    ("bulk/staged_pages.py", "region.queue_id"),  # a region is of the core, which has such a field
    ("export/arrow.py", "self._writer.is_open"),  # of pyarrow
    ("logging.py", "inside.waiting"),  # of a thread
    ("wait/off_loop.py", "call.__doc__"),  # of a function
}
"""What only has the name of an attribute of a lower package."""
FIGURES = {"plot", "profile"}
"""Packages whose classes hold numbers, for all that count."""


def height_of() -> dict[str, int]:
    """Return how high each package is, by the contract of import-linter; the lowest has 0."""
    settings = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    layers = reversed(contract["layers"])
    return {name.strip(): i for i, layer in enumerate(layers) for name in layer.split(":")}


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes to which a piece of code assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node


def is_own(node: ast.Attribute) -> bool:
    """Whether an attribute is one of `self`."""
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def has_setters(method: ast.FunctionDef) -> bool:
    """Whether a method is what an assignment calls: then the object knows of it."""
    return any(
        isinstance(one, ast.Attribute) and one.attr == "setter" for one in method.decorator_list
    )


def attributes_of(owner: ast.ClassDef) -> set[str]:
    """Return the attributes that a class has, without those that only a method sets."""
    names = {node.attr for node in stored(owner) if is_own(node)}
    fields = [node.target for node in owner.body if isinstance(node, ast.AnnAssign)]
    names |= {field.id for field in fields if isinstance(field, ast.Name)}
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
    return names - {method.name for method in methods if has_setters(method)}


def filled_from_above(trees: dict[str, ast.Module], height: dict[str, int]) -> set[tuple[str, str]]:
    """Return module and target of each assignment to an attribute of a lower package's class.

    The name of the attribute tells the class, unless a class of the same package has it, too,
    or one that only holds figures.
    """
    packages: dict[str, set[str]] = {}
    for module, tree in trees.items():
        package = module.split("/")[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and package != "errors":
                for name in attributes_of(node):
                    packages.setdefault(name, set()).add(package)
    found = set()
    for module, tree in trees.items():
        package = module.split("/")[0].removesuffix(".py")
        for node in stored(tree):
            owners = packages.get(node.attr, set())
            if (
                not is_own(node)
                and not owners & {package, *FIGURES}
                and any(height[owner] < height[package] for owner in owners)
            ):
                found.add((module, ast.unparse(node)))
    return found


def sources() -> dict[str, ast.Module]:
    """Return the modules of the package, parsed, by their paths in it."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE) != Path("__init__.py")
    }


@pytest.mark.slow
def test_no_module_fills_an_object_of_a_lower_package() -> None:
    """A name that is gone leaves the list."""
    assert filled_from_above(sources(), height_of()) == FOREIGN


def test_an_assignment_from_above_is_found() -> None:
    """A callback in a store, from two packages; not what a setter sets, or the package itself."""
    trees = {
        "store/store.py": ast.parse("class Store:\n def __init__(self):\n  self.rolled = None"),
        "meta/tail.py": ast.parse(
            "class Tail:\n @property\n def end(self): ...\n @end.setter\n def end(self, end):\n"
            "  self._end = end"
        ),
        "queue/open.py": ast.parse("def begin(store, tail):\n store.rolled = 1\n tail.end = 2"),
        "store/roll.py": ast.parse("def begin(store):\n store.rolled = 1"),
        "group/group.py": ast.parse("self.store.rolled += 1"),
    }
    assert filled_from_above(trees, height_of()) == {
        ("queue/open.py", "store.rolled"),
        ("group/group.py", "self.store.rolled"),
    }

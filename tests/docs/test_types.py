"""The package's types are complete: a user's type checker infers none, and all can be imported."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import typing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pagequeue
from pagequeue import journal, logging, multiprocessing, tasks, types
from pagequeue.schema.codec import NAMES
from pagequeue.store.flush import sync_policy
from pagequeue.system.trust import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (pagequeue, journal, logging, multiprocessing, tasks)
ELSEWHERE = {
    "Any",
    "ArrayLike",
    "Buffer",
    "Callable",
    "DTypeLike",
    "Iterable",
    "Iterator",
    "Mapping",
    "NDArray",
    "Self",
    "Sequence",
    "datetime",
    "logging.LogRecord",
    "np.dtype",
    "np.int64",
    "np.void",
    "os.PathLike",
    "timedelta",
}
"""Names of the standard library and of NumPy."""
VARIABLES = {"Found", "Sent", "State", "T"}
PACKAGE = Path(pagequeue.__file__).parent
ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "guide.md")
RIGHT = """
from typing import Any
from pagequeue import Producer, Queue
from pagequeue.types import QueueOptions

options: QueueOptions = {"sync": "always", "on_full": "block", "trust": ("other_owner",)}
plain: Queue[bytes] = Queue("plain", **options)
plain.producer().send(b"bytes")
text = Queue("text", codec="utf-8")
text.producer().send("a text")
records = Queue("records", dtype=[("price", "<f8")])
records.producer().send((1.5,))
objects = Queue("objects", codec="json")
objects.producer().send({"a": [1]})


def send_any(producer: Producer, value: Any) -> None:
    producer.send(value)


send_any(text.producer(), 5)
"""
WRONG = """
from pagequeue import Queue

Queue("a").producer().send("a text")
Queue("a", codec="utf-8").producer().send(b"bytes")
Queue("a", codec="jsn")
Queue("a", on_full="drop-oldest")
Queue("a", sync="sometimes")
Queue("a", trust=["everybody"])
Queue("a").consumer(on_expired="ignore")
"""


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
    """Return the attributes that are set to something whose type has to be inferred."""
    found: set[str] = set()
    typed = declared(kind)
    for method in kind.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        arguments = {one.arg for one in [*method.args.args, *method.args.kwonlyargs]}
        for node in ast.walk(method):
            if not isinstance(node, ast.Assign):
                continue
            is_argument = isinstance(node.value, ast.Name) and node.value.id in arguments
            if not is_argument and not isinstance(node.value, ast.Constant):
                found |= {name for target in node.targets for name in attributes(target)}
        typed |= {
            node.target.attr
            for node in ast.walk(method)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        }
    return found - typed


@pytest.mark.slow
def test_public_attributes_have_a_type() -> None:
    """What checkers infer differs between them, so `pyright --verifytypes` counts it as unknown."""
    classes = [
        (path, node)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    ]
    assert len(classes) > 100
    assert [f"{path}: {kind.name}.{name}" for path, kind in classes for name in untyped(kind)] == []


def annotated(module: object) -> Iterator[tuple[str, str]]:
    """Yield each annotation of a module's public functions and methods, without constructors."""
    for name in module.__all__:  # type: ignore[attr-defined]
        thing = getattr(module, name)
        members = {name: thing} if inspect.isfunction(thing) else {}
        if isinstance(thing, type):
            owners = reversed(thing.__mro__)
            members = {one: value for kind in owners for one, value in vars(kind).items()}
        for member, value in members.items():
            function = value.fget if isinstance(value, property) else value
            function = getattr(function, "__func__", function)
            is_ours = str(getattr(function, "__module__", "")).startswith("pagequeue")
            if member.startswith("_") or not is_ours or not inspect.isfunction(function):
                continue
            for annotation in function.__annotations__.values():
                yield f"{name}.{member}", re.sub(r"['\"][^'\"]*['\"]", "", str(annotation))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_names_in_public_signatures_can_be_imported(module: object) -> None:
    """From the package, one of its public modules, or `pagequeue.types`."""
    public = {name for one in (*MODULES, types) for name in one.__all__} | set(dir(builtins))
    found = {
        (name, where)
        for where, annotation in annotated(module)
        for name in re.findall(r"[A-Za-z_][\w.]*", annotation)
    }
    assert found
    assert {one for one in found if one[0] not in public | ELSEWHERE | VARIABLES} == set()


def test_names_of_options_are_those_that_are_taken() -> None:
    """A literal that an option refuses, or one that is missing, misleads a type checker."""
    assert set(typing.get_args(types.CodecName)) == set(NAMES)
    assert set(typing.get_args(types.Trust)) == ALL
    for name in typing.get_args(types.SyncName):
        sync_policy(name)


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("on_full", types.OnFull),
        ("on_sync_failure", types.OnSyncFailure),
        ("on_expired", types.OnExpired),
        ("commit", types.CommitMode),
    ],
)
def test_each_name_of_an_option_is_taken(tmp_path: Path, option: str, names: object) -> None:
    """And no other; the error lists exactly these."""
    wrong: dict[str, typing.Any] = {option: "other"}
    with pagequeue.Queue(tmp_path, page_bytes=4096) as queue:
        calls = {
            "commit": lambda: queue.persist([], "worker", **wrong),
            "on_expired": lambda: queue.consumer(**wrong),
        }
        call = calls.get(option, lambda: pagequeue.Queue(tmp_path, **wrong))
        with pytest.raises(pagequeue.InvalidOption) as refused:
            call()
    listed = re.findall(r'"(\w+)"', refused.value.remedy or "")
    assert sorted(listed) == sorted(typing.get_args(names))


@pytest.mark.slow
def test_type_checker_knows_what_a_queue_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its codec or dtype; wrong lines are found, the programs of README and guide are right."""
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPYPATH", str(PACKAGE.parent))  # it finds no editable installation
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    for page in PAGES:
        programs = re.findall(r"(?<!-->\n)```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert programs
        for number, text in enumerate(programs):
            (tmp_path / f"{page.stem}_{number}.py").write_text(text)
    found, told, _ = api.run(
        [
            "--strict",
            "--ignore-missing-imports",
            "--no-error-summary",
            "--config-file=",
            f"--cache-dir={tmp_path / 'cache'}",
            *map(str, sorted(tmp_path.glob("*.py"))),
        ]
    )
    assert told == ""
    lines = [line for line in found.splitlines() if " error: " in line]
    numbers = [int(line.split(":")[1]) for line in lines if "wrong.py" in line]
    assert sorted(set(numbers)) == list(range(4, 11))
    assert [line for line in lines if "wrong.py" not in line] == []

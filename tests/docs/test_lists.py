"""Lists of modules, campaigns and files: each names what exists, and all of it.

An entry that matches no file, and a file that no list names, would pass silently otherwise: five
modules once fell out of the lists of the campaigns that die at lines.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stress import campaign, corpus, fault_plants, fuzzing, plants, variant
from stress import no_weak_publish_is_ever_read as models
from stress.corpus import damage as kinds
from stress.corpus.damage import Kind
from stress.plants import plant
from stress.plants.plant import PATCHES_MODULE, Plant
from stress.plants.registry import PLANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    Names = Callable[[], Iterable[str]]

ROOT = Path(__file__).resolve().parents[2]
STRESS = ROOT / "stress"
CAMPAIGN = re.compile(rf"\b{campaign.CAMPAIGN_PREFIX}[a-z]+(?:_[a-z]+)+\b")
MACHINERY = {"stress.plants.plant", "stress.plants.registry", "stress.plants.rewrite"}
"""The modules of planted bugs that have none."""
FOUND = re.compile(r"(?:crash|timeout|oom|leak|slow-unit)-[0-9a-f]+")
"""How libFuzzer calls an input that it found."""


def read(path: Path) -> str:
    """Return a file's text."""
    return path.read_text(encoding="utf-8")


def files(pattern: str) -> list[str]:
    """Return the paths that match, from the root of the project on."""
    return [str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)]


def rows(begin: str) -> list[str]:
    """Return the campaigns that begin rows of the table after a text in stress/README.md."""
    text = read(STRESS / "README.md").partition(f"\n{begin}")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    return re.findall(rf"^\| `({CAMPAIGN.pattern})`", table[0], re.MULTILINE)


def documents() -> list[Path]:
    """Return all Markdown of the project."""
    return [
        *ROOT.glob("*.md"),
        *(path for name in ("docs", "src", "stress") for path in (ROOT / name).rglob("*.md")),
    ]


def modules_of(package: ModuleType) -> list[ModuleType]:
    """Return all modules of a package, found on disk."""
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return [importlib.import_module(module.name) for module in found]


def patch_modules() -> list[ModuleType]:
    """Return the modules in which bugs are planted."""
    return [
        fault_plants,
        *(module for module in modules_of(plants) if module.__name__ not in MACHINERY),
    ]


def patches_written() -> list[str]:
    """Return the functions that plant a bug, in whatever module they are."""
    return [
        name
        for module in patch_modules()
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]


def plants_written() -> list[str]:
    """Return the bugs in the tuples of all modules."""
    return [
        bug.name
        for module in modules_of(plants)
        for value in vars(module).values()
        if isinstance(value, tuple)
        for bug in value
        if isinstance(bug, Plant)
    ]


def families_written() -> list[str]:
    """Return the modules of the corpus that have to do with a kind of damages."""
    return [
        module.__name__
        for module in modules_of(corpus)
        if module is not kinds
        and any(value is Kind or isinstance(value, Kind) for value in vars(module).values())
    ]


def models_searched() -> list[str]:
    """Return the models, but those that others include."""
    paths = list(models.MODEL_DIRECTORY.glob("*.pml"))
    included = re.findall(r'^#include "(\w+)\.pml"', "".join(map(read, paths)), re.MULTILINE)
    return [path.stem for path in paths if path.stem not in included]


def switches() -> set[str]:
    """Return the bugs that the core's sources have a switch for."""
    sources = "".join(map(read, variant.CORE_DIRECTORY.rglob("*.c")))
    return set(re.findall(r"PQ_PLANTED\((\w+)\)", sources))


def switched_on() -> set[str]:
    """Return the switches that planted bugs turn on."""
    defines = [bug.changes.defines for bug in PLANTS if bug.changes is not None]
    return {value.strip('"') for define in defines for value in define.values()}


def steps_of(text: str) -> set[str]:
    """Return the modules of `stress` that a text runs."""
    return set(re.findall(r"-m (stress(?:\.\w+)+)", text))


def benchmarks() -> list[str]:
    """Return the benchmarks, found on disk."""
    return [f"stress.{path.stem}" for path in STRESS.glob("bench_*") if path.suffix in {"", ".py"}]


def functions_used(pattern: str) -> set[str]:
    """Return the names that modules of `stress` use, other than in defining them."""
    trees = [ast.parse(read(path)) for path in STRESS.glob(pattern)]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def smoke_functions() -> list[str]:
    """Return what the modules named `smoke*.py` have at their top level."""
    trees = [ast.parse(read(path)) for path in STRESS.glob("smoke*.py")]
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]


def harness_used() -> list[str]:
    """Return the C files of the harness that the campaigns' code names, or a pattern there."""
    sources = "".join(map(read, STRESS.rglob("*.py")))
    patterns = re.findall(r'"(\w[\w*]*\.c)"', sources)
    paths = {path.name for pattern in patterns for path in fuzzing.HARNESS.glob(pattern)}
    return sorted(paths)


def without_python() -> list[str]:
    """Return the sources of the core that include Python's header nowhere."""

    def included(path: Path) -> set[str]:
        found = set(re.findall(r'#include ["<]([\w./]+)[">]', read(path)))
        for name in list(found):
            if (variant.CORE_DIRECTORY / name).exists():
                found |= included(variant.CORE_DIRECTORY / name)
        return found

    sources = variant.CORE_DIRECTORY.rglob("*.c")
    return [
        path.relative_to(variant.CORE_DIRECTORY).as_posix()
        for path in sources
        if "Python.h" not in included(path)
    ]


LISTS: dict[str, tuple[Names, Names]] = {
    "campaigns of the runner": (
        campaign.campaign_names,
        lambda: [path.stem for path in STRESS.glob(f"{campaign.CAMPAIGN_PREFIX}*")],
    ),
    "campaigns in stress/README.md": (
        lambda: rows("| campaign |"),
        campaign.campaign_names,
    ),
    "budgets in stress/README.md": (lambda: rows("## Budgets"), campaign.campaign_names),
    "campaigns in any document": (
        lambda: set(CAMPAIGN.findall("".join(map(read, documents())))),
        campaign.campaign_names,
    ),
    "campaigns in the table of promises": (
        lambda: set(CAMPAIGN.findall(read(ROOT / "docs" / "reference.md"))),
        campaign.campaign_names,
    ),
    "functions that plant a bug": (
        lambda: [bug.name for bug in PLANTS if bug.patch],
        patches_written,
    ),
    "planted bugs": (lambda: [bug.name for bug in PLANTS], lambda: set(plants_written())),
    "switches of the core": (switched_on, switches),
    "models": (
        lambda: {case.model for case in models.CASES},
        models_searched,
    ),
    "families of the corpus": (
        lambda: [family.__name__ for family in corpus.FAMILIES],
        families_written,
    ),
    "benchmarks in stress/README.md": (
        lambda: {
            name for name in steps_of(read(STRESS / "README.md")) if name.startswith("stress.bench")
        },
        benchmarks,
    ),
    "seeds of the fuzzer": (
        fuzzing.make_seeds,
        lambda: [path.name for path in fuzzing.seeds() if not FOUND.fullmatch(path.name)],
    ),
    "folders of seeds": (
        lambda: [fuzzing.SEEDS.name],
        lambda: [path.name for path in fuzzing.SEEDS.parent.iterdir()],
    ),
    "C files of the harness": (
        harness_used,
        lambda: [path.name for path in fuzzing.HARNESS.glob("*.c")],
    ),
}
"""By what it is: the names in the list, and those that the disk or the code has."""


def differences(listed: Iterable[str], there: Iterable[str]) -> dict[str, str]:
    """Return what is wrong with a list, by name."""
    names = list(listed)
    wrong = dict.fromkeys(set(names) - set(there), "listed, and not there")
    wrong |= dict.fromkeys(set(there) - set(names), "there, and not listed")
    return wrong | {name: "listed twice" for name in names if names.count(name) > 1}


@pytest.mark.parametrize("what", LISTS)
def test_list_names_exactly_what_exists(what: str) -> None:
    """Neither a name without a thing nor a thing without a name."""
    listed, there = LISTS[what]
    assert list(listed()), "an empty list"
    assert differences(listed(), there()) == {}


@pytest.mark.parametrize("what", LISTS)
def test_wrong_name_in_a_list_is_found(what: str) -> None:
    """A name too many, one too few, and one twice: of each list."""
    listed, there = LISTS[what]
    names = sorted(set(listed()))
    assert differences([*names, "no_such"], there()) == {"no_such": "listed, and not there"}
    assert differences(names[1:], there()) == {names[0]: "there, and not listed"}
    assert differences([*names, names[0]], there()) == {names[0]: "listed twice"}


@pytest.mark.quick_each(25)
@pytest.mark.parametrize("bug", [bug for bug in PLANTS if bug.patch], ids=lambda bug: bug.name)
def test_patch_is_found_where_campaigns_search_for_it(bug: Plant) -> None:
    """Bugs of a module that `patches.py` does not import can never be planted."""
    assert callable(getattr(importlib.import_module(PATCHES_MODULE), bug.name))


def test_names_of_campaigns_that_bugs_are_planted_for_exist() -> None:
    """Also of those that no bug uses yet."""
    names = [value for value in vars(plant).values() if isinstance(value, str)]
    named = {name for name in names if CAMPAIGN.fullmatch(name)}
    assert named
    assert named <= set(campaign.campaign_names())


@pytest.mark.parametrize("name", campaign.campaign_names())
def test_campaign_has_its_contract_and_the_budget_of_the_document(name: str) -> None:
    """A campaign that does not load would fail in a long run only."""
    seconds = campaign.load(name).SHORT_SECONDS
    budgets = read(STRESS / "README.md").partition("\n## Budgets")[2]
    assert re.search(rf"^\| `{name}` \| {seconds:g} s\b", budgets, re.MULTILINE)


def test_functions_of_the_smoke_run_are_all_called() -> None:
    """A function that is not called would not run under the sanitizers."""
    assert set(smoke_functions()) - functions_used("smoke*.py") == set()


def test_sources_without_python_are_those_that_harnesses_link() -> None:
    """Each takes plain memory; one that includes Python's header would not link."""
    assert set(variant.PYTHON_FREE) <= set(without_python())
    assert len(set(variant.PYTHON_FREE)) == len(variant.PYTHON_FREE)


@pytest.mark.slow
def test_every_patch_finds_the_text_that_it_replaces() -> None:
    """Else the library has changed, and the bug is not planted any more."""
    script = """
import os
from stress.plants import patches, registry

for bug in registry.PLANTS:
    if bug.patch and os.fork() == 0:
        try:
            getattr(patches, bug.name)()
        except LookupError as error:
            print(bug.name, error, flush=True)
        finally:
            os._exit(0)
    elif bug.patch:
        os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.decode() == ""

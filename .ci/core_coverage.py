"""Branch coverage of the C core: `poe core-coverage`, with arguments for pytest or without.

It builds the core with gcov's counters and without optimisation in `build/core-coverage`, runs the
tests with it in every process that they start, then the harness that gives the parts without
Python hostile bytes, and prints what gcov counted of each file.

A branch is one edge of a condition, as gcov has it: of a function that is inlined, each copy has
its own. Processes that a signal ends are not counted.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "src" / "pagequeue" / "core"
BUILD = ROOT / "build" / "core-coverage"
sys.path.insert(0, str(ROOT))

from stress.no_bytes_break_the_core import HARNESS, HOSTILE  # noqa: E402 - after the path
from stress.variant import BASE_DEFINES, PYTHON_FREE, compiler, define_flags  # noqa: E402

FLAGS = ["-std=c11", "-O0", "--coverage", "-fprofile-update=atomic", "-pthread"]
DEFAULTS = ["-n", "auto", "-q", "-m", "not slow and not nightly and not spark"]
HOSTILE_CASES = 20_000
MISSING = BUILD / "missing.txt"
MODULE = "_core.abi3.so"
WRITE = """\
void __gcov_dump(void);
__attribute__((visibility("default"))) void coverage_write(void) { __gcov_dump(); }
"""
SITE = f"""\
import ctypes, importlib.machinery, importlib.util, os, sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), {MODULE!r})


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "pagequeue._core":
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, PATH)
        return importlib.util.spec_from_file_location(name, PATH, loader=loader)


def _exit(code, end=os._exit):
    if "pagequeue._core" in sys.modules:
        ctypes.CDLL(PATH).coverage_write()
    end(code)


sys.meta_path.insert(0, Finder)
os._exit = _exit
"""
"""Loads this core instead of the installed one, and has processes count that end by `_exit`."""


def compiled(sources: list[Path], folder: Path, flags: list[str]) -> list[str]:
    """Compile sources into objects of a folder; return these."""
    folder.mkdir(parents=True)
    objects = []
    for source in sources:
        objects.append(str(folder / f"{source.stem}.o"))
        command = [*compiler(), *FLAGS, *flags, f"-I{CORE}", "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True)
    return objects


def build() -> Path:
    """Build the module and the harness; return the harness."""
    shutil.rmtree(BUILD, ignore_errors=True)
    write = BUILD / "write" / "coverage_write.c"
    write.parent.mkdir(parents=True)
    write.write_text(WRITE, encoding="ascii")
    (BUILD / "sitecustomize.py").write_text(SITE, encoding="ascii")
    defines = {**BASE_DEFINES, "Py_LIMITED_API": "0x030B0000"}
    module = ["-fPIC", "-fvisibility=hidden", f"-I{sysconfig.get_path('include')}"]
    objects = compiled(
        sorted(CORE.rglob("*.c")), BUILD / "module", module + define_flags(defines)
    ) + compiled([write], BUILD / "exit", module)
    subprocess.run([*compiler(), *FLAGS, "-shared", *objects, "-o", BUILD / MODULE], check=True)
    free = [HOSTILE, HARNESS / "main.c", *(CORE / name for name in PYTHON_FREE)]
    objects = compiled(free, BUILD / "free", [f"-I{HARNESS}", *define_flags(BASE_DEFINES)])
    harness = BUILD / "hostile"
    subprocess.run([*compiler(), *FLAGS, *objects, "-o", harness], check=True)
    return harness


def counts() -> dict[str, dict[int, tuple[int, list[int]]]]:
    """Return by file and line of the core how often it was executed, and each of its branches."""
    found: dict[str, dict[int, tuple[int, list[int]]]] = {}
    for notes in sorted(BUILD.rglob("*.gcno")):
        command = [*shlex.split(os.environ.get("GCOV", "gcov")), "-b", "-j", "-t", str(notes)]
        done = subprocess.run(command, capture_output=True, check=True)
        for file in json.loads(done.stdout)["files"]:
            path = Path(file["file"])
            if not path.is_relative_to(CORE):
                continue
            lines = found.setdefault(path.relative_to(CORE).as_posix(), {})
            for line in file["lines"]:
                number = line["line_number"]
                own = [branch["count"] for branch in line["branches"]]
                count, branches = lines.get(number, (0, [0] * len(own)))
                if len(own) < len(branches):
                    own += [0] * (len(branches) - len(own))
                branches += [0] * (len(own) - len(branches))
                taken = [a + b for a, b in zip(branches, own, strict=True)]
                lines[number] = (count + line["count"], taken)
    return found


def report(found: dict[str, dict[int, tuple[int, list[int]]]]) -> None:
    """Print how many branches and lines of each file were taken; write which were not."""
    total: Counter[str] = Counter()
    missing = []
    for name, lines in sorted(found.items()):
        own = Counter(
            lines=len(lines),
            executed=sum(count > 0 for count, _ in lines.values()),
            branches=sum(len(branches) for _, branches in lines.values()),
            taken=sum(count > 0 for _, branches in lines.values() for count in branches),
        )
        total += own
        say(row(name, own))
        text = (CORE / name).read_text(encoding="utf-8").splitlines()
        missing += [
            f"{name}:{number}: {''.join('+' if taken else '-' for taken in branches)} "
            f"{text[number - 1].strip()}"
            for number, (count, branches) in sorted(lines.items())
            if count == 0 or 0 in branches
        ]
    say(row("all", total))
    MISSING.write_text("\n".join(missing) + "\n", encoding="utf-8")
    say(f"what was not taken: {MISSING.relative_to(ROOT)}")


def say(line: str) -> None:
    """Print a line, before what programs print that are started later."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def row(name: str, own: Counter[str]) -> str:
    """Return one line of the table."""
    branches, lines = (
        f"{own[part]:5} of {own[whole]:5}{100 * own[part] / max(own[whole], 1):7.1f} %"
        for part, whole in (("taken", "branches"), ("executed", "lines"))
    )
    return f"{name:32} branches{branches}   lines{lines}"


def main(arguments: list[str]) -> int:
    """Build, run and report; return what pytest did."""
    harness = build()
    paths = [str(BUILD), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pytest", *(arguments or DEFAULTS)]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    report(counts())
    say(f"\nand with {HOSTILE_CASES} cases of hostile bytes:\n")
    subprocess.run([harness, "11", str(HOSTILE_CASES)], check=True)
    report(counts())
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

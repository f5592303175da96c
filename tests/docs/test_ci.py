"""The CI script's steps, and the count of tests that a machine without tools does not run."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
import tools

from stress.campaign import campaign_names

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "run"
TEXT = SCRIPT.read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MARKS = ("slow", "tool", "nightly", "spark", "stress")


def entries_of(name: str) -> list[str]:
    """Return the entries of an array of the script."""
    found = re.search(rf"^{name}=\((.*?)\)$", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return shlex.split(found[1])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the script."""
    return subprocess.run(
        [str(SCRIPT), *arguments], capture_output=True, text=True, timeout=600, check=False
    )


def test_list_names_every_step_and_each_has_a_command() -> None:
    """`run_queue` fails a step without commands; these are then known before CI runs.

    The step `more-tests` has both: alone it shows its output while it runs.
    """
    steps = run("--list").stdout.split()
    assert steps == entries_of("STEPS")
    queued = entries_of("QUEUED")
    own = {*steps} - {*queued} | {"more-tests"}
    assert set(re.findall(r"^    ([\w-]+)\) step ", TEXT, re.MULTILINE)) == own
    commands = TEXT[TEXT.index("commands_of() {") : TEXT.index("compile_core() {")]
    assert set(re.findall(r"^    ([\w-]+)\)", commands, re.MULTILINE)) == set(queued)


def part_of_script(name: str) -> str:
    """Return a function of the script."""
    begun = TEXT.index(f"{name}() {{")
    return TEXT[begun : TEXT.index("\n}\n", begun) + 3]


def test_commands_that_take_longest_begin_first() -> None:
    """In the order of LONGEST, whatever step they are of; the others stay in theirs."""
    lines = ["a:ruff", "b:python -m slow", "b:python -m quick", "c:python -m slower x:y"]
    script = f"LONGEST=(slower 'python -m slow')\n{part_of_script('longest_first')}\nlongest_first"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [lines[3], lines[1], lines[0], lines[2]]


def test_every_command_that_takes_longest_is_one() -> None:
    """An entry that names none would leave its command for last."""
    commands = part_of_script("commands_of") + " ".join(campaign_names())
    assert [words for words in entries_of("LONGEST") if words not in commands] == []


@pytest.mark.parametrize(("writes", "shared"), [('echo 1 >"$written"', True), ("false", False)])
def test_classes_are_shared_if_there_is_an_archive(
    tmp_path: Path, writes: str, *, shared: bool
) -> None:
    """Else Spark starts as without one, and why is said."""
    script = (
        f"work={shlex.quote(str(tmp_path))}\n"
        f"in_copy() {{ :; }}; timeout() {{ echo why; {writes}; }}\n"
        f"{part_of_script('share_classes')}\nshare_classes"
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "spark.jsa").exists() == shared
    assert ("not shared: why" in done.stdout) is not shared


@pytest.mark.parametrize("arguments", [["no_such"], ["--list", "main"], ["style", "no_such"], [""]])
def test_unknown_step_is_refused(arguments: list[str]) -> None:
    """No step runs."""
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_readme_commands_run_before_any_tool_is_installed() -> None:
    """A test that fails on a fresh machine was hidden by tools that were installed before it."""
    steps = entries_of("STEPS")
    assert steps[:5] == ["base", "main", "tests", "tools", "more-tests"]
    base = TEXT[TEXT.index("prepare_base() {") : TEXT.index("prepare_tools() {")]
    assert not [tool for tool in entries_of("TOOLS") if tool in base]


def taken(expression: str, marks: dict[str, bool]) -> bool:
    """Whether `-m` takes a test with these marks."""
    return bool(eval(expression, {}, dict(marks)))


def test_every_marked_set_of_tests_is_run_by_one_step() -> None:
    """A mark that keeps tests out of all steps would hide them; twice would only take time.

    A test of `tests` that needs a tool and is not slow is run by the step `tests` too, where the
    tool is there. Those marked `nightly` are run by the task of that name. All of `stress/tests`
    are marked `stress`, by the conftest there.
    """
    options = PROJECT["tool"]["pytest"]["ini_options"]
    runs = [(options["addopts"][-1], options["testpaths"])]
    runs += [
        (expression, folders.split())
        for expression, folders in re.findall(r"-m pytest [^']*-m '(.+)' ([\w/ ]+) 2>", TEXT)
    ]
    assert len(runs) == 1 + TEXT.count("-m pytest ")
    for values in product((False, True), repeat=len(MARKS)):
        marks = dict(zip(MARKS, values, strict=True))
        folder = "stress/tests" if marks["stress"] else "tests"
        by = [run for run in runs if folder in run[1] and taken(run[0], marks)]
        if marks["tool"] and runs[0] in by:
            by.remove(runs[0])
        assert len(by) == (not marks["nightly"]), (folder, marks, by)
    commands = [task["cmd"] for task in PROJECT["tool"]["poe"]["tasks"]["campaigns"]["sequence"]]
    assert "python -m pytest -m nightly tests stress/tests" in commands


def test_document_and_hooks_know_the_tasks() -> None:
    """Each task is in docs/contributing.md, and a commit is checked by what `poe check` runs."""
    tasks = PROJECT["tool"]["poe"]["tasks"]
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    assert [name for name in tasks if f"poe {name}" not in text] == []
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    checked = {command["cmd"].split()[0] for command in tasks["check"]["sequence"]} - {"stubtest"}
    assert [name for name in checked if f"id: {name}\n" not in hooks] == []


def test_run_of_no_test_fails(tmp_path: Path) -> None:
    """An expression that matches no test proves no behaviour."""
    checks = TEXT[TEXT.index("check_log() {") : TEXT.index("in_copy() {")]
    log = tmp_path / "log"
    for line, code in (("3 passed, 9 deselected", 0), ("12 deselected", 1), ("2 skipped", 1)):
        log.write_text(f"tools: 0 tests not run\n==== {line} in 0.51s ====\n", encoding="utf-8")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{checks}\ncheck_log {shlex.quote(str(log))}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (line, done)


def test_script_hides_and_requires_every_tool_that_tests_name() -> None:
    """But what a Linux without tools has: the C compiler's sanitizers and mkfs.ext4."""
    programs = {program for needed in tools.PROGRAMS.values() for program in needed}
    assert programs - {"mkfs.ext4"} == set(entries_of("TOOLS"))
    hidden = entries_of("HIDDEN")
    for program in entries_of("TOOLS"):
        assert any(fnmatch.fnmatch(program, pattern) for pattern in hidden), program


def test_every_tool_is_named_by_a_mark_and_every_mark_names_a_tool() -> None:
    """An entry that no test needs is stale; a mark with another name would never skip."""
    named = set()
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("stress/tests/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.tool":
                argument = node.args[0]
                named.add(argument.value if isinstance(argument, ast.Constant) else None)
    named.discard(None)  # the kinds of disks, in `tools.py`
    assert named | {"mkfs.ext4", "mkfs.xfs"} == set(tools.PROGRAMS)


def test_closing_line_counts_by_tool() -> None:
    """One line, also when no test was skipped: its absence is a failure."""
    assert tools.closing_line([]) == "tools: 0 tests not run"
    assert tools.closing_line(["spin"]) == "tools: 1 test not run: spin (1)"
    assert tools.closing_line(["spin", "clang", "spin"]) == (
        "tools: 3 tests not run: clang (1), spin (2)"
    )


def test_missing_tool_skips_and_fails_where_tools_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine with all tools a skipped test is a failure."""
    monkeypatch.delenv(tools.REQUIRED_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception) as skipped:
        tools.missing("spin", "not installed")
    assert tools.tool_of(str(skipped.value)) == "spin"
    assert tools.tool_of("needs root") is None
    monkeypatch.setenv(tools.REQUIRED_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception):
        tools.missing("spin", "not installed")


@pytest.mark.slow
def test_tests_without_tools_end_with_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: a real run without Spin skips, counts, and fails where tools are required."""
    (tmp_path / "test_it.py").write_text(
        "import pytest, tools\n"
        "tools.PROGRAMS = {'spin': ('no-such-program',)}\n"
        "@pytest.mark.tool('spin')\n"
        "def test_marked(): pass\n",
        encoding="utf-8",
    )
    (tmp_path / "test_other.py").write_text(
        "import tools\ndef test_unmarked(): tools.missing('spin', 'gone')\n", encoding="utf-8"
    )
    (tmp_path / "conftest.py").write_text(
        (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )

    monkeypatch.delenv(tools.REQUIRED_VARIABLE, raising=False)  # CI sets it

    def outcome(name: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-c",
                ROOT / "pyproject.toml",
                "--rootdir",
                tmp_path,
                tmp_path / name,
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stdout

    code, said = outcome("test_it.py")
    assert code == 0, said
    assert "tools: 1 test not run: spin (1)" in said
    code, said = outcome("test_it.py", **{tools.REQUIRED_VARIABLE: "1"})
    assert code == 1, said
    code, said = outcome("test_other.py")
    assert code == 1, said
    assert "not marked" in said

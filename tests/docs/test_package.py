"""What is built: a sdist with which the tests run, and a wheel with nothing but the library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import pagequeue

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", ".github", "docs", "src", "stress", "tests")
FILES = (".gitignore", ".pre-commit-config.yaml", "LICENSE", "pyproject.toml", "setup.py")
MADE = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".hypothesis", ".pytest_cache")
CALL = "from setuptools.build_meta import *; import sys; print(eval(sys.argv[1])(sys.argv[2]))"


def hook(
    project: Path, name: str, out: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call a hook of the build backend, as pip does."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    return subprocess.run(
        [sys.executable, "-c", CALL, name, out],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )


def built(project: Path, name: str, out: Path, **environment: str) -> Path:
    """Return the file that a hook builds."""
    done = hook(project, name, out, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.splitlines()[-1]


def relative(project: Path) -> set[str]:
    """Return all files of a project."""
    return {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the project, without what was built in it."""
    copy = tmp_path / "project"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=MADE)
    for path in [*(ROOT / name for name in FILES), *ROOT.glob("*.md")]:
        shutil.copy(path, copy)
    return copy


def settings() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.slow
def test_missing_compiler_is_told_in_one_line(tmp_path: Path) -> None:
    """The line says what to install, and for which systems."""
    for name in ("build_wheel", "build_editable"):
        done = hook(ROOT, name, tmp_path, CC="no-such-compiler -O2")
        assert done.returncode != 0
        assert re.fullmatch(
            r"pagequeue .* a C compiler \(no-such-compiler\).*apt-get install gcc.*apk add gcc.*\n",
            done.stderr,
        )
    assert list(tmp_path.iterdir()) == []


def test_versions_agree() -> None:
    """The version is in one place; wheels are built for each Python that is named."""
    project, wheels = settings()["project"], settings()["tool"]["cibuildwheel"]
    assert project["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", pagequeue.__version__)
    named = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert wheels["build"].startswith(f"cp3{{{','.join(named)}}}-")
    assert project["requires-python"] == f">=3.{named[0]}"


@pytest.mark.slow
def test_sdist_has_all_files(project: Path, tmp_path: Path) -> None:
    """The tests read the documents, the campaigns and the CI script."""
    files = relative(project)
    with tarfile.open(built(project, "build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert files - names == set()
    assert {name for name in names - files if name.endswith((".so", ".pyc", ".c"))} == set()


@pytest.mark.nightly
@pytest.mark.slow
def test_wheel_for_a_free_threaded_python_is_for_one_version(project: Path, tmp_path: Path) -> None:
    """Up to 3.14 it has no stable ABI; here an ordinary Python says that it is one."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
    )
    wheel = built(project, "build_wheel", tmp_path, PYTHONPATH=str(tmp_path))
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.match(rf"pagequeue-[\d.]+-{version}-{version}t?-linux_", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        cores = [name for name in archive.namelist() if name.endswith(".so")]
    assert len(cores) == 1
    assert re.fullmatch(r"pagequeue/_core\.cpython-\d+t?-.*\.so", cores[0])


@pytest.mark.slow
def test_wheel_has_the_library_only_and_runs(project: Path, tmp_path: Path) -> None:
    """No C sources, no module but the library and what Spark finds it by; the README works."""
    wheel = built(project, "build_wheel", tmp_path)
    assert wheel.name.startswith(f"pagequeue-{pagequeue.__version__}-cp311-abi3-linux_")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    tops = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"pagequeue", "pyspark_pagequeue"}
    files = relative(site)
    assert {name for name in files if name.endswith((".c", ".h"))} == set()
    package = ROOT / "src" / "pagequeue"
    used = {
        p.relative_to(ROOT / "src").as_posix() for p in package.rglob("*.py*") if p.suffix != ".pyc"
    }
    assert used <= files
    for name in ("py.typed", "FORMAT.md", "_core.abi3.so", "spark/native/java/DefaultSource.java"):
        assert f"pagequeue/{name}" in files
    assert b".debug_info" not in (site / "pagequeue" / "_core.abi3.so").read_bytes()
    command = settings()["tool"]["cibuildwheel"]["test-command"]
    done = subprocess.run(
        ["sh", "-euc", command.replace("pagequeue ", f"{sys.executable} -m pagequeue ")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "second message" in done.stdout

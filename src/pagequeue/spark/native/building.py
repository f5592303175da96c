"""The classes of the native reader: compiled in the session, kept as a jar in the user's cache.

The jar's name is a digest of the sources and of Spark's version, so that a jar is never another
one's. It is only taken from a directory that nobody else can write to.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
import zipfile
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE: Final = "pagequeue"
"""Of the Java classes."""
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
PLAIN: Final = re.compile(r"[\w/.~+=@-]+")
"""A path that Spark finds again after it made a URI of it; spaces, for one, are lost."""


class NotCompiled(Exception):
    """The session cannot compile the classes, or they cannot be kept; the text says why."""


def sources() -> dict[str, str]:
    """Return the Java sources by file name."""
    there = resources.files("pagequeue.spark.native") / "java"
    return {
        file.name: file.read_text("utf-8")
        for file in sorted(there.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".java")
    }


def compiled(spark: Any) -> dict[str, bytes]:  # noqa: ANN401 - pyspark is partly typed
    """Return the classes by their path in a jar, compiled by the session's own compiler."""
    machine, gateway = spark._jvm, spark.sparkContext._gateway  # noqa: SLF001 - the only access
    resource = machine.org.codehaus.commons.compiler.util.resource
    texts = sources()
    units = gateway.new_array(resource.Resource, len(texts))
    for i, (name, text) in enumerate(texts.items()):
        units[i] = resource.StringResource(f"{PACKAGE}/{name}", text)
    made = resource.MapResourceCreator()
    nothing = resource.MapResourceFinder()
    janino = machine.org.codehaus.janino
    loader = spark._jsparkSession.getClass().getClassLoader()  # noqa: SLF001 - the same
    compiler = janino.Compiler(nothing, janino.ClassLoaderIClassLoader(loader))
    compiler.setClassFileFinder(nothing)
    compiler.setClassFileCreator(made)
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.setDebugLines(True)
    compiler.setDebugSource(True)
    compiler.compile(units)
    classes = made.getMap()
    return {str(name): bytes(classes[name]) for name in sorted(classes)}


def jar_bytes(classes: Mapping[str, bytes]) -> bytes:
    """Return classes as a jar; the same classes give the same bytes."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as jar:
        for name in sorted(classes):
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            jar.writestr(entry, classes[name])
    return memory.getvalue()


def jar(spark: Any) -> str:  # noqa: ANN401 - pyspark is partly typed
    """Return the path of the jar, built if the cache does not have it.

    If Spark does not take the path of the cache, it is that of a copy.

    Raises:
        NotCompiled: the session has no compiler, or none that takes the sources.
    """
    try:
        return _plain(_jar(spark))
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise NotCompiled(f"its classes cannot be compiled in this session ({why})") from error


def _jar(spark: Any) -> str:  # noqa: ANN401 - the same
    digest = hashlib.sha256(repr((spark.version, sources())).encode()).hexdigest()
    directory = _cache()
    path = os.path.join(directory, f"reader-{digest}.jar")
    if not _is_own(path):
        data = jar_bytes(compiled(spark))
        handle, temporary = tempfile.mkstemp(dir=directory, prefix="reader-", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:  # mkstemp's mode is 0600
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return path


def _plain(path: str) -> str:
    """Return a path with the same bytes that Spark takes."""
    if PLAIN.fullmatch(os.path.realpath(path)):
        return path
    copy = os.path.join(_temporary(), os.path.basename(path))
    if not PLAIN.fullmatch(os.path.realpath(copy)):
        raise NotCompiled(f"Spark does not take the path {copy}: set TMPDIR")
    shutil.copyfile(path, copy)
    return copy


def _cache() -> str:
    """Return a directory that only this user can write to: of the cache, or a temporary one."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(base, "pagequeue")
    if not os.path.isabs(path):
        return _temporary()  # this user has no home
    try:
        os.makedirs(base, exist_ok=True)
        above = os.stat(base)
        if above.st_uid not in {0, os.geteuid()}:
            return _temporary()
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return _temporary()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    is_closed = not status.st_mode & OTHERS_WRITE
    may_replace = above.st_mode & OTHERS_WRITE and not above.st_mode & stat.S_ISVTX
    if is_own and is_closed and not may_replace and os.access(path, os.W_OK | os.X_OK):
        return path
    return _temporary()


def _temporary() -> str:
    path = tempfile.mkdtemp(prefix="pagequeue-native-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _is_own(path: str) -> bool:
    """Whether a file is there, and only this user can write to it."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    is_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_file and not status.st_mode & OTHERS_WRITE and zipfile.is_zipfile(path)

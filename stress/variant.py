"""Variants of the compiled core: with kill points, with a planted bug, under sanitizers.

The library does not know of this. A child of a campaign that finds a path in the environment
variable `CORE_VARIABLE` loads the core from there, before it imports `pagequeue`; other processes
load the core that was installed. Builds are kept in a temporary directory, by the hash of their
inputs.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Replacements = Mapping[str, Sequence[tuple[str, str]]]

CORE_VARIABLE = "PAGEQUEUE_STRESS_CORE"
CHANGES_VARIABLE = "PAGEQUEUE_STRESS_CHANGES"
"""Names a planted bug as `as_text` writes it; every build of this process then has it."""
CORE_DIRECTORY = Path(__file__).resolve().parents[1] / "src" / "pagequeue" / "core"
CORE_MODULE = "pagequeue._core"
PYTHON_FREE = (
    "protocol/crc32c.c",
    "protocol/crc32c_folding.c",
    "protocol/frames.c",
    "protocol/bulk_commit.c",
    "protocol/scan.c",
    "protocol/judge.c",
    "protocol/assign_sequences.c",
    "protocol/flush_turn.c",
    "os/writers_lock.c",
    "os/futex.c",
)
"""The sources that take plain memory only."""
BASE_DEFINES = {"_GNU_SOURCE": "1"}
BASE_FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror")
SANITIZE = (
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-O1",
)
KILL_POINTS: Mapping[str, str] = {"PAGEQUEUE_KILL_POINTS": "1"}


@dataclass(frozen=True)
class Changes:
    """What a build has that the installed core has not.

    Attributes:
        defines: names and values for the preprocessor.
        replacements: by source file, pairs of texts; the first must be there exactly once.
    """

    defines: Mapping[str, str] = field(default_factory=dict)
    replacements: Replacements = field(default_factory=dict)

    def as_text(self) -> str:
        """Return it as the environment carries it."""
        return json.dumps({"defines": self.defines, "replacements": self.replacements})

    def sources(self) -> Path:
        """Return a directory with the core's sources, texts replaced.

        Raises:
            LookupError: a text is not there, or more than once.
        """
        if not self.replacements:
            return CORE_DIRECTORY
        contents = {
            path.relative_to(CORE_DIRECTORY).as_posix(): path.read_bytes()
            for path in CORE_DIRECTORY.rglob("*.[ch]")
        }
        for name, pairs in self.replacements.items():
            text = contents[name].decode()
            for old, new in pairs:
                text = replaced_once(text, old, new, name)
            contents[name] = text.encode()
        digest = hashlib.blake2b(repr(sorted(contents.items())).encode(), digest_size=12)
        path = cache_directory() / f"sources-{digest.hexdigest()}"
        if not path.exists():
            temporary = Path(tempfile.mkdtemp(dir=cache_directory(), prefix="making-"))
            for name, content in contents.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_bytes(content)
            try:
                temporary.rename(path)
            except OSError:  # another process was quicker
                shutil.rmtree(temporary)
        return path


def replaced_once(text: str, old: str, new: str, name: str) -> str:
    """Return a text with one part of it replaced.

    Raises:
        LookupError: that part is not there, or more than once.
    """
    found = text.count(old)
    if found != 1:
        raise LookupError(f"{name} has {found} times, not once: {old!r}")
    return text.replace(old, new)


def told_changes() -> Changes:
    """Return the changes that the environment applies to every build."""
    text = os.environ.get(CHANGES_VARIABLE)
    if not text:
        return Changes()
    told = json.loads(text)
    return Changes(told["defines"], told["replacements"])


def planted(bug: str) -> dict[str, str]:
    """Return the defines of a build with kill points and one bug that the campaigns must find."""
    return {**KILL_POINTS, "PAGEQUEUE_PLANT": f'"{bug}"'}


def compiler() -> list[str]:
    """Return the C compiler's command: $CC, or `cc`."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def cache_directory() -> Path:
    """Return where builds are kept; no other user may write there."""
    path = Path(tempfile.gettempdir()) / f"pagequeue-variants-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user: remove it")
    return path


@functools.cache
def _version(compiler: str) -> bytes:
    return subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout


def compiled(
    command: Sequence[str],
    sources: Sequence[Path],
    arguments: Sequence[str],
    headers: Path = CORE_DIRECTORY,
) -> Path:
    """Compile and link sources with a compiler's command, or take what was built from the same.

    Raises:
        subprocess.CalledProcessError: it did not compile; the compiler's messages are on stderr.
    """
    digest, included = _digest(command, arguments), hashlib.blake2b(digest_size=12)
    for header in sorted(headers.rglob("*.h")):
        included.update(header.name.encode() + b"\0" + header.read_bytes())
    digest.update(included.digest())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    path = cache_directory() / digest.hexdigest()
    with _alone(path):
        if not path.exists():
            linking = [word for word in arguments if word == "-shared" or word.startswith("-Wl,")]
            compiling = [*command, *(word for word in arguments if word not in linking)]
            objects = [str(_object(compiling, source, headers, included)) for source in sources]
            _made(path, [*command, *arguments, *objects, "-lpthread"])
    return path


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from making the same file meanwhile: they take what this one makes."""
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _object(command: Sequence[str], source: Path, headers: Path, included: hashlib.blake2b) -> Path:
    """Compile one source, or take what was compiled from the same preprocessed text.

    A planted bug changes few sources: the objects of the others are those of the core without it.
    Which these are is known without the preprocessor where no header differs either.
    """
    named = None
    if source.is_relative_to(headers):  # else it may include others
        known = _digest(command, [source.relative_to(headers).as_posix()])
        known.update(included.digest() + source.read_bytes())
        named = cache_directory() / f"{known.hexdigest()}.object"
        if named.exists() and (path := cache_directory() / named.read_text("ascii")).exists():
            return path
    command = [*command, f"-I{headers}"]
    text = subprocess.run([*command, "-E", "-P", str(source)], stdout=subprocess.PIPE, check=True)
    flags = [word for word in command if not word.startswith(("-I", "-D"))]
    digest = _digest(flags, [source.name])
    digest.update(text.stdout)
    path = cache_directory() / f"{digest.hexdigest()}.o"
    with _alone(path):
        if not path.exists():
            _made(path, [*command, "-c", str(source)])
    if named is not None:
        temporary = named.with_suffix(f".tmp-{os.getpid()}")
        temporary.write_text(path.name, "ascii")
        temporary.rename(named)
    return path


def _digest(command: Sequence[str], arguments: Sequence[str]) -> hashlib.blake2b:
    """Return the hash of a command, of its compiler's version and of what it is given."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((list(command), list(arguments))).encode() + _version(command[0]))
    return digest


def _made(path: Path, command: Sequence[str]) -> None:
    """Have a command make a file, which appears when it is whole."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    subprocess.run([*command, "-o", str(temporary)], check=True)
    temporary.rename(path)


def define_flags(defines: Mapping[str, str]) -> list[str]:
    """Return defines as a compiler takes them."""
    return [f"-D{name}={value}" for name, value in sorted(defines.items())]


def build(
    defines: Mapping[str, str],
    flags: Sequence[str] = ("-O2",),
    extra: Sequence[Path] = (),
    replacements: Replacements | None = None,
) -> Path:
    """Build the core as an extension module; return its path.

    Args:
        defines: names and values for the preprocessor.
        flags: for compiling and linking.
        extra: sources besides the core's own.
        replacements: by source file, pairs of texts; the first must be there exactly once.
    """
    told = told_changes()
    directory = merged(told, replacements).sources()
    all_defines = {**BASE_DEFINES, "Py_LIMITED_API": "0x030B0000", **defines, **told.defines}
    arguments = [
        *("-shared", "-fPIC", "-fvisibility=hidden", *BASE_FLAGS, *flags),
        *define_flags(all_defines),
        f"-I{sysconfig.get_path('include')}",
    ]
    return compiled(compiler(), [*sorted(directory.rglob("*.c")), *extra], arguments, directory)


def merged(changes: Changes, replacements: Replacements | None) -> Changes:
    """Return changes followed by more replacements."""
    all_of_them = {name: list(pairs) for name, pairs in changes.replacements.items()}
    for name, pairs in (replacements or {}).items():
        all_of_them.setdefault(name, []).extend(pairs)
    return Changes(changes.defines, all_of_them)


def build_program(
    sources: Sequence[Path],
    flags: Sequence[str],
    command: Sequence[str] | None = None,
    replacements: Replacements | None = None,
) -> Path:
    """Build a program of these sources and of the core's parts that need no Python.

    Args:
        sources: of the program.
        flags: for compiling and linking.
        command: the compiler's; $CC or `cc` by default.
        replacements: by source file of the core, pairs of texts; the first must be there once.
    """
    told = told_changes()
    directory = merged(told, replacements).sources()
    core = [directory / name for name in PYTHON_FREE]
    arguments = [*BASE_FLAGS, *flags, *define_flags({**BASE_DEFINES, **told.defines})]
    return compiled(command or compiler(), [*sources, *core], arguments, directory)


def can_sanitize() -> bool:
    """Whether the compiler can build and run a program under ASan and UBSan."""
    if shutil.which(compiler()[0]) is None:
        return False
    source = cache_directory() / "probe.c"
    source.write_text("int main(void) { return 0; }\n", encoding="ascii")
    try:
        program = compiled(compiler(), [source], SANITIZE)
    except subprocess.CalledProcessError:
        return False
    return subprocess.run([program], check=False).returncode == 0


def install(path: Path) -> None:
    """Make this build the core of this process, before `pagequeue` is imported.

    Raises:
        RuntimeError: another core is in use already.
    """
    if CORE_MODULE in sys.modules:
        raise RuntimeError(f"{CORE_MODULE} is imported already: install the variant before it")
    loader = importlib.machinery.ExtensionFileLoader(CORE_MODULE, str(path))
    spec = importlib.util.spec_from_file_location(CORE_MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[CORE_MODULE] = module


def bootstrap() -> None:
    """Install what the environment names, if it names anything."""
    path = os.environ.get(CORE_VARIABLE)
    if path:
        install(Path(path))

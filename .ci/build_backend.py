"""setuptools, but a sdist has the whole project, and a missing compiler is told in one line.

A free-threaded CPython has no stable ABI until 3.15: there a wheel is for its version only.

pyproject.toml names this file as the build backend.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that are not below
from setuptools.command import bdist_wheel, build_ext
from setuptools.command.egg_info import manifest_maker

Settings = dict[str, str | list[str] | None]

manifest_maker.template = ".ci/MANIFEST.in"


class _OneVersionWheel(bdist_wheel.bdist_wheel):
    """A wheel for the version of Python that builds it."""

    def finalize_options(self) -> None:
        self.py_limited_api = False
        super().finalize_options()


class _OneVersionExtensions(build_ext.build_ext):
    """Extensions with all of the C API of that version."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for extension in self.extensions:
            extension.py_limited_api = False
            extension.define_macros = [
                macro for macro in extension.define_macros if macro[0] != "Py_LIMITED_API"
            ]


if sysconfig.get_config_var("Py_GIL_DISABLED"):
    # setuptools finds its commands by these names.
    bdist_wheel.bdist_wheel = _OneVersionWheel
    build_ext.build_ext = _OneVersionExtensions


def _check_compiler() -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacking = [] if shutil.which(compiler) else [f"a C compiler ({compiler})"]
    lacking += [] if header.exists() else [str(header)]
    if lacking:
        raise SystemExit(
            f"pagequeue is built from C, which needs {' and '.join(lacking)}: `apt-get install gcc "
            "libc6-dev python3-dev`, `dnf install gcc python3-devel` or `apk add gcc musl-dev "
            "linux-headers python3-dev`, then try again"
        )


def build_wheel(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel; return its name."""
    _check_compiler()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build what an editable installation needs; return its name."""
    _check_compiler()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)

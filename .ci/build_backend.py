"""setuptools, but a sdist has the whole project, and a missing compiler is told in one line.

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
from setuptools.command.egg_info import manifest_maker

Settings = dict[str, str | list[str] | None]

manifest_maker.template = ".ci/MANIFEST.in"


def _check_compiler() -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacking = [] if shutil.which(compiler) else [f"a C compiler ({compiler})"]
    lacking += [] if header.exists() else [str(header)]
    if lacking:
        raise SystemExit(
            f"pagequeue is built from C, which needs {' and '.join(lacking)}: `apt-get install gcc "
            "libc6-dev python3-dev` or `dnf install gcc python3-devel`, then try again"
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

"""The C core, and what is built: pyproject.toml cannot say it by patterns.

All sources are compiled. A missing compiler is told in one line. The sdist has the whole project. A
free-threaded CPython has no stable ABI until 3.15: there a wheel is for its version only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.egg_info import manifest_maker

CORE = "src/pagequeue/core"
IS_STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

manifest_maker.template = ".ci/MANIFEST.in"

if {"bdist_wheel", "editable_wheel"} & set(sys.argv):
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

setup(
    ext_modules=[
        Extension(
            "pagequeue._core",
            sources=sorted(map(str, Path(CORE).glob("*/*.c"))),
            depends=sorted(map(str, Path(CORE).glob("*/*.h"))),
            include_dirs=[CORE],
            define_macros=[
                ("_GNU_SOURCE", "1"),
                *([("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else []),
            ],
            extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
            extra_link_args=["-pthread", "-Wl,--strip-all"],
            py_limited_api=IS_STABLE,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)

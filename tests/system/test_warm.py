"""A process that the tests fork from a warm one behaves as one that starts an interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import warm

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {
    "words": "import sys; print(sys.argv, __name__, '__file__' in globals(), sys.stdin.read())",
    "path": "import sys; print(sys.path[:2]); import colorsys; print(colorsys.__file__)",
    "streams": "import sys; print([(s.name, s.mode, s.encoding, s.errors, s.line_buffering)"
    " for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "descriptors": "import os; print(os.listdir('/proc/self/fd'))",
    "code": "import sys; sys.exit(7)",
    "text": "import sys; sys.exit('why')",
    "error": "def f(): 1 / 0\nf()",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "handlers": "import signal; print([signal.getsignal(n) for n in signal.valid_signals()])",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
    "exit": "import atexit; atexit.register(print, 'exits')\n"
    "class A:\n    def __del__(self): print('gone')\na = A()",
    "fork": "import os\nif os.fork():\n    print(os.wait()[1])\nelse:\n    raise SystemExit(3)",
    "warning": "import warnings; warnings.warn('no', ResourceWarning)",
}


def ended(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    """Return how a process ended, and what it wrote."""
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_has_the_same_outcome(name: str) -> None:
    """Its words, streams, descriptors and handlers, what it prints, and how it ends."""
    command = [sys.executable, "-W", "error", "-c", PROGRAMS[name], "word"]
    fresh, forked = (
        how(command, input="given", capture_output=True, text=True, timeout=60, check=False)
        for how in (subprocess.run, warm.run)
    )
    assert ended(fresh) == ended(forked)


@pytest.mark.slow
def test_shell_gets_forked_commands(tmp_path: Path) -> None:
    """With closed streams, with a signal, in a pipe, a file and a module."""
    (tmp_path / "file.py").write_text("import sys; print(sys.argv, __file__, sys.path[0])")
    text = (
        "python file.py a; python -c 'import os; os.kill(os.getpid(), 15)'; echo $?; "
        "pagequeue info none 2>&1 | head -c 9; echo ${PIPESTATUS[0]}; pagequeue --version >&-; "
        "echo $?; python -c 'import sys; sys.exit(4)' <&- >&- 2>&-; echo $?"
    )
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    fresh = {**os.environ, "PATH": path}
    found = [
        subprocess.run(
            ["bash", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        for environment in (fresh, warm.environment())
    ]
    assert found[0] == found[1]


def test_process_has_its_own_group_and_takes_signals() -> None:
    """And its number, its end, and an error of its start are told."""
    code = "import os, signal; print(os.getpid(), os.getsid(0), flush=True); signal.pause()"
    with warm.Popen(
        [sys.executable, "-c", code], stdout=warm.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(process.pid)] * 2
        assert process.poll() is None
        with pytest.raises(warm.TimeoutExpired):
            process.wait(0)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    done = warm.run([sys.executable, "-c", "1"], cwd="/nowhere", stderr=warm.PIPE, text=True)
    assert (done.returncode, "/nowhere" in done.stderr) == (1, True)
    with pytest.raises(ValueError, match="interpreter of its own"):
        warm.run([sys.executable, "-c", "1"], env={"PYTHONPATH": "/nowhere"})

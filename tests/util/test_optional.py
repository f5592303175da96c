"""A missing extra names the command that adds it to this installation."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest

from pagequeue import MissingExtra
from pagequeue.util import optional

INDEX = "pip install 'pagequeue[plot]'"
CASES: list[tuple[dict[str, Any] | None, str]] = [
    (None, INDEX),
    ({"url": "file:///srv/a%20b/pq", "dir_info": {}}, "pip install '/srv/a b/pq[plot]'"),
    (
        {"url": "file:///srv/me/pq", "dir_info": {"editable": True}},
        "pip install -e '/srv/me/pq[plot]'",
    ),
    (
        {"url": "file:///tmp/pagequeue-0.1.0.whl", "archive_info": {}},
        "pip install 'pagequeue[plot] @ file:///tmp/pagequeue-0.1.0.whl'",
    ),
    (
        {"url": "https://host/pq.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
        "pip install 'pagequeue[plot] @ git+https://host/pq.git'",
    ),
]


class Installed:
    """What the system says of an installation."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, name: str) -> str | None:
        """Return where it was installed from; None: an index."""
        assert name == "direct_url.json"
        return self.text


@pytest.mark.parametrize(("origin", "command"), CASES)
def test_command_fits_the_installation(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    """An index does not have what came from a directory, a file or a repository."""
    installed = Installed(None if origin is None else json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda _: installed)
    assert optional.install_command("plot") == command
    with pytest.raises(MissingExtra) as caught:
        optional.library("no_such_module", "plot", "pictures")
    assert caught.value.remedy == command
    assert str(caught.value).endswith(command)


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_unreadable_record_hides_no_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The command is then the one for an index."""
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(text))
    assert optional.install_command("plot") == INDEX


def test_library_on_a_path_has_a_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PYTHONPATH, where no distribution is installed."""

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert optional.install_command("plot") == INDEX

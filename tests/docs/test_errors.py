"""Every error: its branch, the builtin it is a kind of, what it carries."""

from __future__ import annotations

import builtins
import copy
import errno
import inspect
import pickle

import pytest

import pagequeue
from pagequeue import Queue, errors

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.PageQueueError)
]
BRANCHES = {
    errors.RetryError,
    errors.SeekError,
    errors.DamageError,
    errors.UpgradeError,
    errors.AccessError,
    errors.UsageError,
}
BUILTIN_KINDS = {
    errors.NothingReceived: TimeoutError,
    errors.LockTimeout: TimeoutError,
    errors.FlushTimeout: TimeoutError,
    errors.UpdateTimeout: TimeoutError,
    errors.DiskFull: OSError,
    errors.SystemLimit: OSError,
    errors.SequenceOutOfRange: ValueError,
    errors.SyncFailed: OSError,
    errors.QueueNotFound: FileNotFoundError,
    errors.NotADirectory: NotADirectoryError,
    errors.AccessDenied: PermissionError,
    errors.ClosedError: ValueError,
    errors.ForkedError: RuntimeError,
    errors.ConcurrentUse: RuntimeError,
    errors.ReadOnlyQueue: PermissionError,
    errors.InvalidOption: ValueError,
    errors.PageSizeMismatch: ValueError,
    errors.MessageTooLarge: ValueError,
    errors.TimestampOrder: ValueError,
    errors.NaiveDatetime: ValueError,
    errors.SequencesExhausted: OverflowError,
}


def test_every_error_derives_from_exactly_one_branch() -> None:
    """The caller's next step is always clear."""
    for kind in ALL:
        above = [branch for branch in BRANCHES if issubclass(kind, branch)]
        assert len(above) == (0 if kind is errors.PageQueueError else 1), kind


def test_error_with_a_builtin_equivalent_inherits_from_it() -> None:
    """Code that knows only builtins catches them."""
    for kind, builtin in BUILTIN_KINDS.items():
        assert issubclass(kind, builtin), kind


def test_every_error_is_documented_public_and_shadows_no_builtin() -> None:
    """Each has a docstring, is exported, and has a name that no builtin has."""
    for kind in ALL:
        assert kind.__doc__, kind
        assert not hasattr(builtins, kind.__name__)
        assert getattr(pagequeue, kind.__name__) is kind
        assert kind.__name__ in pagequeue.__all__


@pytest.mark.parametrize("copied", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_errors_pass_between_processes_with_all_they_carry(copied: object) -> None:
    """A worker's error reaches its parent as it was."""
    for kind in ALL:
        error = kind("no room: make room", path="/q", position=7, head_sequence=3)
        if isinstance(error, OSError):
            error.errno, error.strerror, error.filename = errno.ENOSPC, "No space", "/q"
        again = copied(error)
        assert type(again) is kind
        assert str(again) == str(error) == "/q: no room: make room"
        assert (again.path, again.position, again.head_sequence) == ("/q", 7, 3)
        if isinstance(error, OSError):
            assert (again.errno, again.strerror, again.filename) == (errno.ENOSPC, "No space", "/q")


def test_message_carries_the_path_only_when_there_is_one() -> None:
    """An error about no file names none."""
    assert str(errors.UsageError("wrong: fix it")) == "wrong: fix it"
    assert errors.UsageError("wrong: fix it").path is None
    assert errors.UsageError("wrong", path="/q").path == "/q"


def test_remedy_ends_the_message_and_can_be_had_apart() -> None:
    """Who has other words for the remedy shows the problem and those."""
    error = errors.QueueFull("no room", path="/q", remedy="acknowledge, then call again")
    assert str(error) == "/q: no room: acknowledge, then call again"
    assert error.remedy == "acknowledge, then call again"
    assert error.problem == "/q: no room"
    assert pickle.loads(pickle.dumps(error)).problem == error.problem
    assert errors.QueueFull("no room").problem == "no room"


def test_describe_returns_the_systems_text() -> None:
    """The errno's text, without its number or a path."""
    assert errors.describe(OSError(errno.ENOSPC, "x", "/p")) == "No space left on device"
    assert errors.describe(OSError("only words")) == "only words"


def test_everything_exported_exists_and_is_sorted() -> None:
    """`from pagequeue import *` gives what the documentation names."""
    assert sorted(pagequeue.__all__) == pagequeue.__all__
    for name in pagequeue.__all__:
        assert hasattr(pagequeue, name)


def test_usage_errors_end_with_a_remedy(tmp_path: object) -> None:
    """The end of a message is the remedy."""
    with pytest.raises(errors.InvalidOption, match=r"give a multiple of 4096"):
        Queue(tmp_path, page_bytes=5000)
    with pytest.raises(errors.QueueNotFound, match=r"create=True$|for writing$"):
        Queue(tmp_path / "none", create=False)


def test_every_error_branch_is_retryable_or_listed_as_not_retryable() -> None:
    """Inspections record the one and raise the other: each branch belongs to one of them."""
    kinds = set(errors.PageQueueError.__subclasses__())
    assert kinds == {*errors.NOT_RETRYABLE, errors.RetryError}
    assert not any(issubclass(kind, errors.RetryError) for kind in errors.NOT_RETRYABLE)

"""Private file systems of a campaign: in an image on a loop device, or in memory with a size limit.

No part of them outlives a campaign, however it ends. An image is memory without a name, its last
user releases the loop device with it, and `private_mounts` puts all mounts into a namespace that
ends with its processes. It needs root, and for images loop devices and the mkfs of their kind.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import shutil
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

MIB: Final = 1 << 20
TMPFS: Final = "tmpfs"
MKFS: Final = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
IMAGE_BYTES: Final = {"ext4": 128 * MIB, "xfs": 320 * MIB}
"""The smallest size that mkfs.xfs accepts is 300 MiB."""

SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are the same number
LOG_FLUSHED: Final = 1
"""What the journal holds in memory reaches the disk first; data does not."""
LOG_DROPPED: Final = 2
"""From here on no write reaches the disk."""

LOOP_CONTROL: Final = "/dev/loop-control"
LOOP_CTL_GET_FREE: Final = 0x4C82
LOOP_CONFIGURE: Final = 0x4C0A
LOOP_CONFIG: Final = struct.Struct("=II 5Q 4I 64s64s32s 2Q 8Q")
LOOP_FLAGS_AUTOCLEAR: Final = 4
LOOP_TRIES: Final = 50

CLONE_NEWNS: Final = 0x00020000
MS_REC_PRIVATE: Final = 0x4000 | 0x40000
MNT_DETACH: Final = 2
BUSY_SECONDS: Final = 60.0
"""Killed processes release their mounts within this time."""

_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """A requirement of the campaign is missing; the text names it."""


def _called(result: int, path: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def private_mounts() -> None:
    """Give this process a private mount namespace: its mounts end with it and its children.

    Raises:
        Unavailable: not root, or not allowed.
    """
    try:
        _called(_libc.unshare(CLONE_NEWNS), "unshare")
        _called(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None), "/")
    except (OSError, AttributeError) as error:
        raise Unavailable(f"no private mount namespace ({error}): run it as root") from error


def why_not(kind: str) -> str | None:
    """Return what is missing for a disk of this kind, as far as that shows without making one."""
    if not sys.platform.startswith("linux"):
        return "mounting needs Linux"
    if os.geteuid() != 0:
        return "mounting needs root"
    if kind == TMPFS:
        return None
    if not os.path.exists(LOOP_CONTROL):
        return f"no loop devices here: {LOOP_CONTROL} is missing"
    if shutil.which(MKFS[kind][0]) is None:
        return f"{MKFS[kind][0]} is not installed"
    return None


def _attach(image: int) -> tuple[str, int]:
    """Return a loop device on an image, and the descriptor that keeps it."""
    config = LOOP_CONFIG.pack(
        image, 0, *[0] * 5, 0, 0, 0, LOOP_FLAGS_AUTOCLEAR, b"", b"", b"", *[0] * 10
    )
    control = os.open(LOOP_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(LOOP_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            writer = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(writer, LOOP_CONFIGURE, config)
                # Kept open to read only: some kernels refuse writers next to a mount.
                return path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.EBUSY:  # another process was given the same one
                    raise
            finally:
                os.close(writer)
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device stays free", LOOP_CONTROL)


class Disk:
    """A mounted file system, as a context manager.

    Args:
        kind: "ext4", "xfs" or "tmpfs".
        path: where it is mounted; the directory is made if it is not there.
        size_bytes: of the image, or the limit of a tmpfs; None takes the smallest usual.

    Raises:
        Unavailable: what it needs is not here, or not allowed.
    """

    def __init__(self, kind: str, path: Path, size_bytes: int | None = None) -> None:
        missing = why_not(kind)
        if missing is not None:
            raise Unavailable(f"{kind}: {missing}")
        self.kind = kind
        self.path = path
        self.options = b""
        self._image_fd = self._device_fd = -1
        path.mkdir(parents=True, exist_ok=True)
        try:
            if kind == TMPFS:
                self._device = TMPFS
                self.options = b"size=%d,mode=755" % (size_bytes or 8 * MIB)
            else:
                self._make_image(size_bytes or IMAGE_BYTES[kind])
            self.mount()
        except OSError as error:
            self.close()
            raise Unavailable(f"{kind}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _make_image(self, size_bytes: int) -> None:
        self._image_fd = os.memfd_create(f"{self.kind}-image", os.MFD_CLOEXEC)
        os.ftruncate(self._image_fd, size_bytes)
        self._device, self._device_fd = _attach(self._image_fd)
        made = subprocess.run([*MKFS[self.kind], self._device], capture_output=True, check=False)
        if made.returncode != 0:
            raise OSError(errno.EIO, made.stderr.decode(errors="replace").strip(), self._device)

    def mount(self) -> None:
        """Mount it; after a power cut this is what reads the journal."""
        names = (self._device.encode(), os.fsencode(self.path), self.kind.encode())
        _called(_libc.mount(*names, ctypes.c_ulong(0), self.options), str(self.path))

    def unmount(self) -> None:
        """Unmount it; its users were killed or have closed all files, perhaps just now."""
        deadline = time.monotonic() + BUSY_SECONDS
        pause = 0.0005
        while _libc.umount2(os.fsencode(self.path), 0) != 0:
            number = ctypes.get_errno()
            if number != errno.EBUSY or time.monotonic() > deadline:
                raise OSError(number, os.strerror(number), str(self.path))
            gc.collect()
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def cut(self, how: int = LOG_DROPPED) -> None:
        """Cut the power: from here on no write reaches the disk, and every call on it fails."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("=I", how))
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Give it power again, once all processes that used it are gone.

        The loop device is another one then: what the old one has in memory never was on the disk.
        """
        self.unmount()
        if self._image_fd >= 0:
            os.close(self._device_fd)
            self._device_fd = -1
            self._device, self._device_fd = _attach(self._image_fd)
        self.mount()

    def close(self) -> None:
        """Unmount it and release its image, even if processes still use it."""
        _libc.umount2(os.fsencode(self.path), MNT_DETACH)
        for fd in (self._device_fd, self._image_fd):
            if fd >= 0:
                os.close(fd)
        self._device_fd = self._image_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Bugs planted in bulk commits and in replicas of sealed pages: errors, and missing syncs."""

from __future__ import annotations

from pagequeue.bulk import publisher
from pagequeue.maintenance import ship, ship_target
from pagequeue.send import queue_end
from stress.plants.plant import FAULT, SIM, in_python
from stress.plants.rewrite import rewrite

SHIPPING = (
    in_python(
        "published_and_not_flushed",
        "a bulk commit returns before its messages are durable",
        "I5, a piece of work that its writer never repeats",
        {FAULT: 60.0},
    ),
    in_python(
        "consumer_before_manifest",
        "a consumer is moved before the replica has what it was for",
        "I20, retention takes what was not shipped",
        {FAULT: 240.0},
    ),
    in_python(
        "refused_though_published",
        "a bulk commit fails when mapping its last page fails",
        "I19, a commit reported as failed is there",
        {FAULT: 240.0},
    ),
    in_python(
        "copies_not_synced",
        "copies of pages are not synced before the manifest names them",
        "I20, a replica that a power cut empties",
        {FAULT: 60.0},
    ),
    in_python(
        "manifest_before_copies",
        "the manifest can be on the disk before the pages' names are",
        "I20, pages that are named and not there",
        {SIM: 180.0},
    ),
    in_python(
        "noted_after_a_failed_sync",
        "the manifest is written although a sync of names failed",
        "I20, pages that are named and not there",
        {FAULT: 360.0},
    ),
    in_python(
        "replica_ends_inside",
        "a replica can end between the pages of a large message",
        "I20, a message whose fragments are missing",
        {FAULT: 240.0},
    ),
)


def published_and_not_flushed() -> None:
    """Messages are durable only after a flush."""
    rewrite(publisher.BulkPublisher, "_publish_once", ("end._flush_sent(found.stop)", "pass"))


def consumer_before_manifest() -> None:
    """The place of the consumer is stored first."""
    noted = (
        "    self._target.note(replace(self._target.manifest, pages=tuple(self._pages)))\n"
        "    self._is_noting = False\n"
    )
    moved = "    self._release()\n"
    rewrite(ship._Shipping, "_note", (noted + moved, moved + noted))


def refused_though_published() -> None:
    """The publisher attaches to the page that it published."""
    rewrite(
        queue_end.QueueEnd,
        "_commit_pages",
        (
            "        raise self._damaged()\n",
            "        raise self._damaged()\n    self._move()\n",
        ),
    )


def copies_not_synced() -> None:
    """The system writes copies when it likes to."""
    rewrite(ship_target.Target, "put", ("            os.fsync(fd)\n", ""))


def manifest_before_copies() -> None:
    """One sync of the directory is enough for all names."""
    rewrite(ship_target.Target, "note", ("    folder.sync_entries()\n", ""))


def noted_after_a_failed_sync() -> None:
    """The next sync succeeds, without the names that the failed one lost."""
    rewrite(ship._Shipping, "_note", ("if self._is_noting:", "if False:"))


def replica_ends_inside() -> None:
    """After any page the manifest is due, if so many bytes were copied."""
    rewrite(ship._Shipping, "_copy_all", ("if self._next >= self._message_end:", "if True:"))

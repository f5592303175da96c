"""Writes whose tasks run in the JVM: the driver's side, which `QueueWrite.java` calls.

Staging, ledger and jobs are those of the Python writers, so that a query can continue with the
other one. Nothing is kept between requests: each has the options, and those that follow the first
one name the queue that it prepared.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from pyspark.sql.types import StructType

from pagequeue import errors
from pagequeue.spark.native.choosing import parsed_words
from pagequeue.spark.native.record_words import Unknown, record_words
from pagequeue.spark.options import sink_options
from pagequeue.spark.path_glob import Found
from pagequeue.spark.staging import Staged, begin, end, staging_directory
from pagequeue.spark.writing import Target, prepare, publish_batch, publish_table, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagequeue.spark.options import WriteOptions
    from pagequeue.spark.staging import Shape

log: logging.Logger = logging.getLogger("pagequeue")
OF_SINK: Final = "sink\n"
"""How a request begins."""


def sink_answer(request: str, why_not: str) -> str:
    """Return the answer to a request of `QueueWrite.java`.

    Args:
        request: what is asked, the options of the table and of the write, and more lines.
        why_not: the JVM's tasks cannot write here; empty: they can.

    Raises:
        PageQueueError: the write is refused, or failed.
    """
    verb, of_table, given, *lines = request.split("\n")
    options = sink_options(parsed_words(of_table), parsed_words(given))
    match verb:
        case "choose":
            return _chosen(options, StructType.fromJson(json.loads(lines[0])), why_not)
        case "table" | "stream":
            target = _prepare(options, lines)
            options = replace(options, path=target.directory)
            job = uuid.uuid4().hex
            if verb == "table":
                begin(options, job)
            words = f"{quote(target.directory, safe='')} {target.queue_id}"
            return "\n".join([words, staging_directory(options), job])
    directory, queue_id = lines.pop(0).split(" ")
    target = Target(unquote(directory), queue_id)
    options = replace(options, path=target.directory)
    match verb:
        case "commit table":
            publish_table(options, target, lines[0], _staged(lines[1:]))
        case "abort table":
            end(options, lines[0])
        case "commit batch":
            query, batch = lines[0].split(" ")
            publish_batch(options, target, query, int(batch), _staged(lines[1:]))
        case "abort batch":
            end(options, lines[0].replace(" ", "-"))
        case _:
            raise ValueError(f"unknown request {verb!r}")
    return ""


def _chosen(options: WriteOptions, schema: StructType, why: str) -> str:
    """Return what `RowColumns.java` has to know; empty: Python's tasks write."""
    if options.sink == "python":
        return ""
    if not why:
        try:
            dtype = Found(os.path.abspath(options.path), options.prefix, options.trust).dtype()
        except errors.QueueNotFound:
            dtype = None
        shape = shape_of(schema, dtype)
        try:
            told = _told(schema, shape)
        except Unknown as unknown:
            why = f"it does not write {unknown}"
        else:
            log.info("%s: written by the native sink", options.path)
            return told
    if options.sink == "native":
        raise errors.InvalidOption(
            f"the native sink cannot write this: {why}", remedy='give sink="python", or "auto"'
        )
    log.info("%s: written by the Python sink: %s", options.path, why)
    return ""


def _told(schema: StructType, shape: Shape) -> str:
    """Return places of payload and time among the columns, -1 if absent, and a record's fields.

    Raises:
        Unknown: the Java side cannot write one of the fields.
    """
    names = [field.name for field in schema.fields]
    time = names.index(shape.time) if shape.time else -1
    if shape.dtype is None:
        return f"{names.index(shape.payload)} {time} 0"
    return " ".join([f"-1 {time} {shape.dtype.itemsize}", *record_words(shape.dtype)])


def _prepare(options: WriteOptions, lines: Sequence[str]) -> Target:
    schema = StructType.fromJson(json.loads(lines[0]))
    shape, target = prepare(options, schema, overwrite=lines[1] == "true")
    try:
        is_same = _told(schema, shape) == lines[2]
    except Unknown:
        is_same = False
    if not is_same:
        raise errors.InvalidOption(
            "the queue got another dtype after this write was planned",
            path=options.path,
            remedy="write again",
        )
    return target


def _staged(lines: Sequence[str]) -> list[Staged]:
    found = []
    for line in lines:
        count, frame_bytes, size, checksum, name = line.split(" ")
        found.append(Staged(name, int(count), int(frame_bytes), int(size), int(checksum)))
    return found

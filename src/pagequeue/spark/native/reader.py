"""The native reader's set-up in a session: its classes, and the driver's Python that they ask."""

from __future__ import annotations

import logging
from typing import Any, Final

from pagequeue.spark.native.building import NotCompiled, jar
from pagequeue.spark.native.planner import Planner

log: logging.Logger = logging.getLogger("pagequeue")
FORMAT: Final = "pagequeue"
"""Spark finds `DefaultSource` of this package, else the Python source of this name."""
_prepared: dict[str, str] = {}
"""Of each application why its JVM does not have the classes; empty: it has."""
_planner = Planner(_prepared)


def prepare(spark: Any) -> str:  # noqa: ANN401 - pyspark is partly typed
    """Give a session's JVM the classes, and the calling thread the way to them.

    Returns:
        why that is impossible; empty: it is done.
    """
    machine = getattr(spark, "_jvm", None)
    if machine is None:
        return "it needs a session with a JVM of its own (this is Spark Connect)"
    application = spark.sparkContext.applicationId
    session = spark._jsparkSession  # noqa: SLF001 - the only access
    is_new = application not in _prepared
    if is_new:
        try:
            session.sessionState().resourceLoader().addJar(jar(spark))
        except NotCompiled as error:
            _prepared[application] = str(error)
            log.info("the Python source reads all queues in this session: %s", error)
    if _prepared.get(application):
        return _prepared[application]
    # Another thread of Python is another one in the JVM, which looks elsewhere for classes.
    loader = session.sharedState().jarClassLoader()
    machine.java.lang.Thread.currentThread().setContextClassLoader(loader)
    if is_new:
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415 - no Connect

        gateway = spark.sparkContext._gateway  # noqa: SLF001 - the same
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        machine.pagequeue.Planner.set(_planner, gateway.java_gateway_server.getCallbackClient())
        _prepared[application] = ""
    return ""

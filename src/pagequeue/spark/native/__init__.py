"""The native reader: rows of queues as columnar batches, made inside the JVM.

A read is planned in Python, in the driver, when a frame is used: queues are opened as for any read,
and filters become ranges. Tasks read pages in Java and check each frame that they return. The Java
sources are data of this package; the session compiles them with the compiler that Spark ships.
"""

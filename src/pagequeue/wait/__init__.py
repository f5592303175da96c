"""How coroutines of all packages sleep (`coroutine.py`), are woken (`notifier.py`), use threads.

A blocking call sleeps in the core: `core/python/idle_strategy.c`, on the futex of
`core/os/futex.c`.
"""

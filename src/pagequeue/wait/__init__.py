"""Waiting in coroutines: the notifier and jobs that threads do for event loops.

A blocking call waits in the core: `core/python/idle.c`.
"""

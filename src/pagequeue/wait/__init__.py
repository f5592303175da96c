"""Waiting for messages: the notifier and jobs that threads do for event loops."""

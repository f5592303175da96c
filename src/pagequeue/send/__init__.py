"""Sending messages: producers, blocking and under asyncio."""

"""Reading messages: consumers, replays and batches, blocking and under asyncio."""

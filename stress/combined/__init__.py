"""The parts of `no_combination_breaks_a_promise`.

`ground.py` is what all processes of a round share, `operations.py` and `sending.py` what is done to
one open queue, `coroutines.py` the same on event loops, `flows.py` flows, `commands.py` command
lines, `scene.py` the random compositions, `worker.py` the processes that play them, `files.py` the
identity of files, `judge.py` the accounting of each queue.
"""

"""Bugs that are planted on purpose, so that it can be seen whether the campaigns find them.

`registry.py` lists them, `patches.py` has those planted in Python, `rewrite.py` has the tools.
`python -m stress.score` plants one after the other and prints who caught it.
"""

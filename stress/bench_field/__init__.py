"""Measures pagequeue beside the field: all peers behind one adapter, in turns, all checked.

`python -m stress.bench_field` uses the harness, the roles and the adapters of `stress.bench`. Here
are who takes part (`contenders`), in what (`cases`), and what is made of it: text (`page`),
pictures (`plots`), and the command.
"""

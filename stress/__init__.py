"""Stress campaigns: each module named `no_...` forbids one outcome and tries to bring it about.

`python -m stress` lists them, `python -m stress NAME --seconds 60` runs one. What a campaign is
is defined in `stress/campaign.py`.
"""

"""Figures of queues: rates, sizes, gaps, lags, and what is missing, late or there twice."""

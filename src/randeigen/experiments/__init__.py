"""Measurements: every claim of the paper and of this package, as data."""

"""Attacks on a training set."""

"""Attacks that train inside Byzantine clients, on poisoned data or towards poisoned weights."""

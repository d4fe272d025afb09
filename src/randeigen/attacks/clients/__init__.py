"""Attacks that run inside a malicious client, which trains on what it should not."""

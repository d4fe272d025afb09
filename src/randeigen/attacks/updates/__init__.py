"""Attacks that craft the rows that malicious clients send."""

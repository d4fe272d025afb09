"""Attacks that replace the updates of Byzantine clients, given what they see of the round."""

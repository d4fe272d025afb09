"""Times that a test need not wait for."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    from randeigen.flower import grid, run

    monkeypatch.setattr(grid, "LEAST_GRACE", 0.2)
    monkeypatch.setattr(grid, "STUCK_AFTER", 0.1)
    monkeypatch.setattr(run, "POLL", 0.02)


@pytest.fixture(autouse=True)
def quiet():
    """Flower's log is shown where a test asks for it."""
    logger = logging.getLogger("flwr")
    handlers, logger.handlers = logger.handlers, []
    propagate, logger.propagate = logger.propagate, True
    yield
    logger.handlers, logger.propagate = handlers, propagate

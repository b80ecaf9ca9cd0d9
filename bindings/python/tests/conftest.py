"""Engines for tests, and bytes that differ everywhere."""

import sys

import numpy as np
import pytest

import kvrail

#: Bound of everything that must not hang.
LONG = 20.0


def pattern(length, seed=1):
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


@pytest.fixture
def pair():
    """Two connected engines: owner, writer, and the owner as the writer's peer."""
    with kvrail.Engine() as owner, kvrail.Engine() as writer:
        yield owner, writer, writer.connect(owner.address, owner.generation).wait(LONG)


@pytest.fixture
def slow_pair():
    """As `pair`, over TCP and with a peer that counts as dead soon."""
    settings = dict(transports=["tcp"], heartbeat=0.1, peer_timeout=0.8)
    with kvrail.Engine(**settings) as owner, kvrail.Engine(**settings) as writer:
        yield owner, writer, writer.connect(owner.address).wait(LONG)


def references(thing):
    """References to an object besides those of asking."""
    return sys.getrefcount(thing) - 2

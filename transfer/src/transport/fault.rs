//! Faults by seed: a decorator of rails for tests.

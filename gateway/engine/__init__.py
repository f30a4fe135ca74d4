"""Deterministic engines: no I/O, no clock, no randomness. `factory.make_engine` makes one for a segment."""

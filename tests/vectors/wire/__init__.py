"""Plays recorded conversations of a harness with a core against the real connection and run loop."""

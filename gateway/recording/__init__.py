"""Recordings of runs: what the gateway writes, and how it is read again (docs/recordings.md)."""

"""The Harness API channel without I/O: messages in, frames and events out (harness-api 2)."""

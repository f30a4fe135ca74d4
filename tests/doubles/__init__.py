"""Servers that stand in for what the services call: real sockets, strict protocols, no network."""

"""Connections to remote MCP servers, with the official SDK's client transports."""

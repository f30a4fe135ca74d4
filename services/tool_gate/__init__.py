"""The Tool Gate: holds the connections to remote MCP servers, and the credentials that they ask for (mcp-pool 9)."""

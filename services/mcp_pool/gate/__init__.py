"""Remote MCP servers: requests to a Tool Gate over HTTP, which holds their connections and credentials."""

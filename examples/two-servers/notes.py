"""An MCP server that keeps notes in a file, written with the official SDK."""

import os
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("notes", version="1", instructions="Keeps notes.", log_level="ERROR")
# PLUGIN_DATA is a folder of the server's own that stays.
file = Path(os.environ.get("PLUGIN_DATA", "."), "notes.txt")


@server.tool(structured_output=False)
def add_note(text: str) -> str:
    """Keeps a note."""
    with file.open("a", encoding="utf-8") as notes:
        notes.write(text.replace("\n", " ") + "\n")
    return "Kept."


@server.tool(structured_output=False)
def list_notes() -> str:
    """Lists the notes, one a line."""
    return file.read_text("utf-8") if file.exists() else "No notes."


if __name__ == "__main__":
    server.run("stdio")

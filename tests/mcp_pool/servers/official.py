"""A real MCP server written with the official SDK: text, structured, mixed and failing results."""

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent
from pydantic import BaseModel

server = MCPServer("official", version="1", log_level="ERROR")


class Sum(BaseModel):
    total: int


@server.tool()
def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b)


@server.tool(structured_output=False)
def greet(name: str) -> str:
    """Greets."""
    return f"Good day, {name}."


@server.tool(structured_output=False)
def mixed() -> list[TextContent | ImageContent]:
    """Text, an image, text."""
    return [
        TextContent(type="text", text="a"),
        ImageContent(type="image", data="aGk=", mime_type="image/png"),
        TextContent(type="text", text="b"),
    ]


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("no luck")


if __name__ == "__main__":
    server.run("stdio")

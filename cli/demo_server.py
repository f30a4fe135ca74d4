"""The demo's MCP server: the order book of a small shop, over stdio or HTTP, written with the official SDK.

A manifest starts it with the interpreter that runs Whippletree:
`{"name": "orders", "type": "stdio", "command": "<sys.executable>", "args": ["-m", "cli.demo_server"]}`.
With a port (`python -m cli.demo_server 8765`) it is a remote server: streamable HTTP at 127.0.0.1, path /mcp.
"""

from __future__ import annotations

import sys
from typing import Final, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

Status = Literal["open", "packed", "shipped", "delivered"]


class Order(BaseModel):
    """One order. Prices are in cents."""

    id: str
    customer: str
    item: str
    quantity: int
    unit_price_cents: int
    status: Status


class OrderTotal(BaseModel):
    """What an order comes to, in cents."""

    order_id: str
    total_cents: int
    status: Status


_ROWS: Final = (
    ("A-1001", "Mara Lind", "oak whippletree", 2, 18_900, "shipped"),
    ("A-1002", "Jonas Behr", "hame strap", 12, 1_450, "open"),
    ("A-1003", "Mara Lind", "trace chain", 4, 3_275, "packed"),
    ("A-1004", "Ines Okafor", "collar pad", 1, 5_600, "delivered"),
)
ORDERS: Final = tuple(Order.model_validate(dict(zip(Order.model_fields, row, strict=True))) for row in _ROWS)

_READ_ONLY: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True)

server = MCPServer(
    "orders",
    version="1",
    instructions="Looks up orders of a small harness maker's shop.",
    log_level="ERROR",
)


@server.tool(annotations=_READ_ONLY, structured_output=False)
def list_orders(status: Status | None = None) -> str:
    """Lists the orders, one a line; all of them, or those with one status."""
    lines = [
        f"{order.id}: {order.quantity} x {order.item} for {order.customer}, {order.status}"
        for order in ORDERS
        if status is None or order.status == status
    ]
    return "\n".join(lines) or "No orders."


@server.tool(annotations=_READ_ONLY)
def get_order(order_id: str) -> Order:
    """Gives one order with all its details."""
    return _find(order_id)


@server.tool(annotations=_READ_ONLY)
def order_total(order_id: str, express: bool = False) -> OrderTotal:
    """Works out what an order costs; express delivery adds a fee of 9.90."""
    order = _find(order_id)
    total = order.quantity * order.unit_price_cents + (990 if express else 0)
    return OrderTotal(order_id=order.id, total_cents=total, status=order.status)


def _find(order_id: str) -> Order:
    for order in ORDERS:
        if order.id.lower() == order_id.strip().lower():
            return order
    raise ToolError(f"There is no order {order_id}.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")

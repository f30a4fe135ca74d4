# An MCP server in a shell: answers `initialize`, then waits for the end of its stdin.
read -r line
printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"tiny","version":"0"}}}'
while read -r line; do :; done

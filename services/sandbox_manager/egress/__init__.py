"""The only way out of a sandbox: a forward proxy that lets a workspace reach the hosts of its spec."""

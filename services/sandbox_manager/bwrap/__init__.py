"""The bubblewrap driver: real commands in namespaces of their own (sandbox-manager 16.3)."""

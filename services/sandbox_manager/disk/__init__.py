"""Workspaces as folders of the host, reached in such a way that no link in them leads out."""

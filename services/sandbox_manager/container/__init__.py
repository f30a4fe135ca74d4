"""The container driver: commands run in containers of a Docker or Podman engine (sandbox-manager 16.2)."""

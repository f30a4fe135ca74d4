"""Flow engines: `flow-1` runs workflow manifests of version 1, `flow-2` those of version 2."""

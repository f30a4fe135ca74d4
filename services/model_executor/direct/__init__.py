"""The direct route: model providers called without a gates service (model-executor 13)."""

"""What flows need of the core: linked sessions for their agents, and the outcomes these come to (flow-engine 14.1)."""

"""Files that agents and people keep: stored by content, versioned, listed by session."""

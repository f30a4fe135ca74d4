"""What `whippletree replay` and `whippletree diff` do with recordings."""

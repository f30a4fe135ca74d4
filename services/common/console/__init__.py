"""What every page of ours is made of: its look, small helpers, and how its files are served."""

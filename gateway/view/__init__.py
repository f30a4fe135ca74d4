"""A page for people: what this gateway runs, and what it knows of the services."""

"""Programs that write pages and pictures of the documentation from the code (`make pages`)."""

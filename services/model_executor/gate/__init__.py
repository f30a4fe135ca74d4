"""The gate route: model calls over HTTP to a Nylorun gateway, which holds the credentials."""

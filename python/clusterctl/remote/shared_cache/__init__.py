"""A shared cache: signed packs and locks in a folder, on an HTTP server, in S3 storage or in an OCI registry."""

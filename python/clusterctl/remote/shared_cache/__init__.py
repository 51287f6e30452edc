"""A shared cache: signed packs and locks in a folder, on an HTTP server or in S3 storage."""

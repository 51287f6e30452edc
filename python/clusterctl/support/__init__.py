"""Helpers that every room may use: errors, content of the collection, YAML with line numbers."""

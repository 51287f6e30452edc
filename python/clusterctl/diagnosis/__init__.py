"""Findings about a cluster: what differs between nodes, and what would hurt a job."""

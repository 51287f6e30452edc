"""Validation: the checks that prove a cluster, and the run that starts them."""

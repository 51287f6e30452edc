"""Provisioning: from bare hosts to one cluster."""

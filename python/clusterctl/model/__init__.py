"""Frozen types that cross the seams between rooms; this room does no I/O."""

# SPDX-License-Identifier: Apache-2.0
"""Whose a node is, and which run works on it: the mark of a cluster, and the lock of a run."""

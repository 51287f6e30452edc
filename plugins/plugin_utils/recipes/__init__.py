# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes of the software: for each role, what a cluster gets, from what it is built, and how it is proved.

A recipe is a pure function. It takes the hosts with their settings and facts, and what the recipes before it decided.
It returns refusals and artifacts. It runs once in a run, on the controller, for all hosts.
"""

from __future__ import annotations

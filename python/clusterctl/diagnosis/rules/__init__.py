"""What the nodes' facts, logins and connections show to be wrong: evidence in, findings out; no I/O.

Nothing is claimed that could not be seen, and limits are such that a healthy cluster has no finding; each stands in
``table.py`` or as a constant in its module, and in docs/reference/doctor.md.
"""

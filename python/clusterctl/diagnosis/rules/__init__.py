"""What the nodes' facts, logins and connections show to be wrong: evidence in, findings out; no I/O.

Nothing is claimed that could not be seen, and thresholds are such that a healthy cluster has no finding; each stands
as a constant in its module, and in docs/reference/doctor.md.
"""

"""Work on nodes over ssh: commands, programs, facts, copies."""

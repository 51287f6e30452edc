"""The user's own program: started on all nodes, or inside an allocation of a scheduler."""

"""What makes several ranks one: mesh, attention, sharding hooks, agreement."""

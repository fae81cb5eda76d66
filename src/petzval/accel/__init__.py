"""Wrappers put around a built model: what they do is decided by a recipe, and what they remember by a trajectory."""

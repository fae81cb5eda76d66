"""Reuse across steps: predictions forecast from earlier ones, by one linear primitive and one gate with a budget."""

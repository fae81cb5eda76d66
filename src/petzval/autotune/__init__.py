"""Fidelity ruler, recipe search, benchmark harness: how a speed-up is found, measured and believed."""

"""Sigma schedules, samplers, guidance branches, noise, and the trajectory."""

"""Drawn scenes that the pocket models learn from, their captions, and the judge who reads pictures back."""

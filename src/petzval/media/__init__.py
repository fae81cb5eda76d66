"""Pixels to files and back: pictures, clips, and the recipe that each output carries."""

"""Pixels to files and files to pixels, and the record of a generation that travels inside the file. No torch."""

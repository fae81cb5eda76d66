"""Tasks: encode, denoise, decode."""

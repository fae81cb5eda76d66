"""A folder per published family: dit, conditioning, vae, weights, spec. Plain math, no flags for speed."""

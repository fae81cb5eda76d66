"""Training: flow-matching fine-tuning, and the recipes that make the pocket models."""

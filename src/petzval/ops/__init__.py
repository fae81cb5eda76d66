"""The few hot tensor operations: each a table of rows whose last one is the reference."""

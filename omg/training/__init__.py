"""Training runs: the compiled loop, the loop for environments in Python, and the trainer that drives them."""

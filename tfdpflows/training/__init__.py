"""Private training: its plan, and the batch, noise and charge of each step."""

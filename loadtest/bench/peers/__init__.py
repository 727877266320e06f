"""Other engines to compare ours with, each in an environment of its own."""

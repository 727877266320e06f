"""The engine's benchmark: ours in all its modes, peers on the same weights, in one run."""

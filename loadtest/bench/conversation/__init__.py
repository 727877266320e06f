"""The conversation benchmark: what callers notice of turn-taking, counted."""

"""Has anything that matters become worse? The gate of continuous integration, in a minute.

No figure is a time of this machine, so that any machine may judge: they are counts, ratios of two
things in one run, or of virtual time.
"""

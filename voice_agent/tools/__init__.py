"""Tools of a spoken conversation: declared in the agent's file, run by the commit rule.

`desk` runs one call's tools, `toolbox` makes an agent's; the others are where the work is done.
"""

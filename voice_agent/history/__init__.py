"""Calls that are over: who answered, how each turn went, how it ended. Never audio, never secrets.

History    follows live calls; a bounded queue and a thread of its own   (history.py)
Store      writes and deletes                                            (store.py)
Reader     lists, finds, exports                                         (reader.py)
schema     the two tables; revisions.py and migrations/ bring old ones up to date
"""

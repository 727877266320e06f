"""Telephone calls: SIP and RTP by baresip in a worker process, conversations in the core."""

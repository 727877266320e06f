"""A recorded call, and the same call again on a virtual clock."""

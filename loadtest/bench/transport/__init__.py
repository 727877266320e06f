"""What a call costs to carry, by transport: CPU time per 20 ms frame each way, calls per core."""

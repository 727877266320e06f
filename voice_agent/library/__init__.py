"""Behind the names that `voice_agent` exports: agents, calls and models of one's own."""

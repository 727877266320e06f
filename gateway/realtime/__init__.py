"""The OpenAI Realtime protocol (GA): typed events, session settings, and the mapping to a call."""

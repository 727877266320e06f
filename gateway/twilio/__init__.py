"""Telephone calls over Media Streams: the WebSocket of Twilio and of those that speak like it."""

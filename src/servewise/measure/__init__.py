"""Measure a real endpoint: what to send, when, and whether the numbers can be trusted."""

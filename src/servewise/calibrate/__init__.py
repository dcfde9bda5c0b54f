"""Correct the step model from what was measured, and say what is left."""

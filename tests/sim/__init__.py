"""The simulator against its oracle and against its own single steps."""

"""The simulator against what can be known without it: queueing theory and schedules worked out by hand."""

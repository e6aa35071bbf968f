"""Incidents: what happened in a window of a recorded service, what was forecast, and what would have helped."""

"""Requests that are known, simulated on engines: compared with what was recorded, and under what-ifs."""

"""The page: every deployment at a glance, one in depth, and what-ifs on it. Reads the log and changes nothing in it."""

"""Files into evidence chains and chains into reports and records: the shell around `twin.evidence`."""

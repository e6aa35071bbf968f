"""The shell around the core: Kafka, files, clocks, processes, the command line."""

"""Logs without a broker, in memory and in files, with Kafka's rules. Not a broker: no network, no replicas."""

"""What others fetch or are told of: metrics for Prometheus, alerts for Alertmanager or a file. Decides no forecast."""

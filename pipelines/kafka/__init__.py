"""All that talks to Kafka: nothing outside this package imports aiokafka or faust."""

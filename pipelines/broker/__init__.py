"""Brokers: which one to use here, and how to start and stop it. Holds no client of Kafka's protocol."""

from pipelines.broker.choice import BrokerChoice, PassedOver, choose_broker, running_broker
from pipelines.broker.classpath import find_java, kafka_classpath
from pipelines.broker.jvm import JvmKafka
from pipelines.broker.settings import BrokerSettings, broker_settings

__all__ = [
    "BrokerChoice",
    "BrokerSettings",
    "JvmKafka",
    "PassedOver",
    "broker_settings",
    "choose_broker",
    "find_java",
    "kafka_classpath",
    "running_broker",
]

"""Addresses and credentials of a cluster, from the environment to a client's arguments."""

import ssl

import pytest

from pipelines.errors import ConfigError
from pipelines.kafka.access import ClusterAccess, cluster_access

SECRET = "hunter2"
SASL = {
    "TWINCAST_BOOTSTRAP": "kafka-1.example:9094, kafka-2.example:9094",
    "TWINCAST_SECURITY_PROTOCOL": "SASL_SSL",
    "TWINCAST_SASL_MECHANISM": "SCRAM-SHA-512",
    "TWINCAST_SASL_USERNAME": "ann",
    "TWINCAST_SASL_PASSWORD": SECRET,
}


def test_plain_access_needs_an_address_only():
    arguments = cluster_access({"TWINCAST_BOOTSTRAP": "127.0.0.1:9092"}).client_arguments()
    assert arguments == {"bootstrap_servers": ["127.0.0.1:9092"], "security_protocol": "PLAINTEXT"}


def test_credentials_and_encryption_reach_the_client():
    arguments = cluster_access(SASL).client_arguments()
    context = arguments.pop("ssl_context")
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert arguments == {
        "bootstrap_servers": ["kafka-1.example:9094", "kafka-2.example:9094"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": SECRET,
    }


def test_an_address_in_hand_goes_before_the_environment():
    assert cluster_access(SASL, "127.0.0.1:1").servers() == ["127.0.0.1:1"]


def test_the_password_is_in_no_text():
    access = cluster_access(SASL)
    assert SECRET not in repr(access)
    assert SECRET not in str(access)
    with pytest.raises(ConfigError) as refusal:
        cluster_access(SASL | {"TWINCAST_SASL_USERNAME": ""})
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"TWINCAST_BOOTSTRAP": ""}, "no Kafka cluster is named; set TWINCAST_BOOTSTRAP"),
        ({"TWINCAST_BOOTSTRAP": "localhost"}, "must be host:port"),
        ({"TWINCAST_BOOTSTRAP": "localhost:http"}, "must be host:port"),
        ({"TWINCAST_BOOTSTRAP": "localhost:0"}, "must be host:port"),
        ({"TWINCAST_BOOTSTRAP": "a:1,,b:2"}, "must be host:port"),
        ({"TWINCAST_SECURITY_PROTOCOL": "TLS"}, "TWINCAST_SECURITY_PROTOCOL must be one of PLAINTEXT"),
        ({"TWINCAST_SASL_MECHANISM": "GSSAPI"}, "TWINCAST_SASL_MECHANISM must be one of PLAIN"),
        ({"TWINCAST_SASL_PASSWORD": ""}, "needs TWINCAST_SASL_USERNAME and TWINCAST_SASL_PASSWORD"),
        ({"TWINCAST_TLS_CERT_FILE": "/c"}, "TWINCAST_TLS_CERT_FILE and TWINCAST_TLS_KEY_FILE go together"),
    ],
)
def test_what_cannot_be_is_refused_with_the_variable_to_correct(change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        cluster_access(SASL | change)


def test_a_missing_certificate_file_is_told(tmp_path):
    access = ClusterAccess(bootstrap="a:1", protocol="SSL", ca_file=tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match="the TLS files cannot be used"):
        access.client_arguments()

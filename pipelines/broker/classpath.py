"""Finds Java and, through Maven, the jars of Apache Kafka. Starts no broker; downloads nothing by itself.

Law: a class path that is handed out names files that all exist; a cached one that no longer does is made anew.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from pipelines.broker.settings import KAFKA_VERSION, BrokerSettings
from pipelines.errors import ConfigError

JAVA_AT_LEAST = 17
"""What Kafka 4's broker is compiled for."""


def find_java(settings: BrokerSettings) -> Path:
    """The java program to use. Raises ConfigError when there is none, or one too old."""
    candidates = [str(Path(settings.java_home) / "bin")] if settings.java_home else []
    found = next(filter(None, (shutil.which("java", path=p) for p in (*candidates, settings.search_path))), None)
    if found is None:
        raise ConfigError(f"no java on the PATH; install a Java {JAVA_AT_LEAST} runtime, or set TWINCAST_BOOTSTRAP")
    try:
        told = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{found} cannot be run ({error}); install a Java {JAVA_AT_LEAST} runtime") from error
    version = java_major(told.stderr + told.stdout)
    if version is None or version < JAVA_AT_LEAST:
        raise ConfigError(
            f"{found} is Java {version or 'of an unknown version'}, Kafka {KAFKA_VERSION} needs {JAVA_AT_LEAST} "
            "or newer; install one and set JAVA_HOME"
        )
    return Path(found)


def java_major(text: str) -> int | None:
    """Major version in what `java -version` prints, or None.

    >>> java_major('openjdk version "17.0.15" 2025-04-15'), java_major('java version "1.8.0_401"'), java_major("?")
    (17, 8, None)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def kafka_classpath(settings: BrokerSettings, tell: Callable[[str], None]) -> str:
    """The class path of Kafka's broker, from the cache or from Maven.

    `tell` gets one line when Maven has to be asked, which downloads about 45 MB the first time.
    Raises ConfigError where the cache directory cannot be written, mvn is missing, or it resolves nothing.
    """
    pom = resources.files("pipelines.broker").joinpath("pom.xml").read_text()
    name = f"kafka-{KAFKA_VERSION}-{hashlib.blake2b(pom.encode(), digest_size=6).hexdigest()}.classpath"
    cached = settings.cache_dir / name
    try:
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
        with open(settings.cache_dir / "classpath.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            classpath = cached.read_text() if cached.is_file() else ""
            if not usable(classpath):
                classpath = resolve(pom, settings, tell)
                scratch = cached.with_suffix(".new")
                scratch.write_text(classpath)
                scratch.replace(cached)
    except OSError as error:
        raise ConfigError(
            f"cannot write to the cache directory {settings.cache_dir} ({error.strerror}); set TWINCAST_CACHE_DIR to "
            "a directory of yours"
        ) from error
    return classpath


def usable(classpath: str) -> bool:
    """Whether every file named is there."""
    return bool(classpath) and all(Path(entry).is_file() for entry in classpath.split(":"))


def resolve(pom: str, settings: BrokerSettings, tell: Callable[[str], None]) -> str:
    """Ask Maven for the jars. Raises ConfigError with Maven's own first complaint."""
    maven = shutil.which("mvn", path=settings.search_path)
    if maven is None:
        raise ConfigError("Java is here but no mvn on the PATH to fetch Apache Kafka with; install Maven")
    tell(f"fetching Apache Kafka {KAFKA_VERSION} with Maven, once")
    with tempfile.TemporaryDirectory(prefix="twincast-maven-") as scratch:
        (Path(scratch) / "pom.xml").write_text(pom)
        output = Path(scratch) / "classpath.txt"
        command = [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={output}"]
        try:
            ended = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=settings.resolve_timeout_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"Maven did not resolve Apache Kafka ({error}); run it again when online") from error
        classpath = output.read_text().strip() if output.is_file() else ""
    if ended.returncode != 0 or not usable(classpath):
        raise ConfigError(
            f"Maven cannot resolve org.apache.kafka:kafka_2.13:{KAFKA_VERSION}: {first_complaint(ended.stdout)}; "
            "check the network and Maven's settings.xml, or set TWINCAST_BOOTSTRAP"
        )
    return classpath


def first_complaint(text: str) -> str:
    """The first error line of Maven's output, without its colours, cut to a readable length."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.removeprefix("[ERROR]").strip() for line in plain.splitlines() if line.startswith("[ERROR]")]
    return (lines[0] if lines else "it printed no reason")[:300]

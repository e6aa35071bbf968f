"""An open-loop client: sends on its own clock, whatever the server does, and reports what clients would have seen.

Prompts are token ids, outputs have forced lengths, so no tokenizer is needed and lengths are exact. Arrivals are
Poisson from a seed. Latencies count from the planned arrival: a client that is late hides queueing.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass

import aiohttp

VOCABULARY = 31_000


@dataclass
class Outcome:
    """One request: planned arrival, TTFT and E2E in seconds; None if refused or failed."""

    planned_s: float
    ttft_s: float | None = None
    e2e_s: float | None = None
    status: int = 0


async def send(
    session: aiohttp.ClientSession, url: str, model: str, name: str, prompt: list[int], tokens: int
) -> Outcome:
    """One streamed completion."""
    planned = time.monotonic()
    outcome = Outcome(planned)
    body = {
        "model": model, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True,
        "stream": True,
    }  # fmt: skip
    try:
        async with session.post(f"{url}/v1/completions", json=body, headers={"X-Request-Id": name}) as answer:
            outcome.status = answer.status
            async for line in answer.content:
                if line.startswith(b"data: {") and answer.status == 200:
                    now = time.monotonic() - planned
                    outcome.ttft_s = now if outcome.ttft_s is None else outcome.ttft_s
                    outcome.e2e_s = now
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        print(f"{name}: {type(error).__name__}", file=sys.stderr)
    return outcome


async def drive(url: str, model: str, rate_per_s: float, seconds: float, seed: int) -> list[Outcome]:
    """Poisson arrivals for `seconds`; waits for the answers."""
    draw = random.Random(seed)
    timeout = aiohttp.ClientTimeout(total=300.0)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = []
        due, started, number = 0.0, time.monotonic(), 0
        while due < seconds:
            await asyncio.sleep(max(0.0, started + due - time.monotonic()))
            prompt = [
                draw.randrange(3, VOCABULARY) for _ in range(min(2000, max(8, round(draw.lognormvariate(5.3, 0.6)))))
            ]
            tokens = min(400, max(2, round(draw.lognormvariate(3.6, 0.6))))
            tasks.append(asyncio.create_task(send(session, url, model, f"r{seed:03d}{number:06d}", prompt, tokens)))
            number += 1
            due += draw.expovariate(rate_per_s)
        return list(await asyncio.gather(*tasks))


def quantile(values: list[float], share: float) -> float:
    """The value at `share` of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def main() -> None:
    """Drive a server and print one JSON object with what clients saw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", default="http://127.0.0.1:8100")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    outcomes = asyncio.run(drive(args.url, args.model, args.rate, args.seconds, args.seed))
    ttft = [one.ttft_s for one in outcomes if one.ttft_s is not None]
    e2e = [one.e2e_s for one in outcomes if one.e2e_s is not None]
    print(
        json.dumps(
            {
                "requests": len(outcomes),
                "answered": len(e2e),
                "ttft_s": {f"p{share * 100:.0f}": round(quantile(ttft, share), 4) for share in (0.5, 0.95, 0.99)},
                "e2e_s": {f"p{share * 100:.0f}": round(quantile(e2e, share), 4) for share in (0.5, 0.95, 0.99)},
            }
        )
    )


if __name__ == "__main__":
    main()

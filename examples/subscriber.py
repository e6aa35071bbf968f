"""A scheduler's view in twenty lines: act on fresh forecasts, fall back to what can be seen when they are stale.

TWINCAST_BOOTSTRAP=127.0.0.1:9092 python examples/subscriber.py
"""

import asyncio
import json
import os
import time

from aiokafka import AIOKafkaConsumer

STALE_AFTER_S = 20.0  # by the wall clock: for a live service, a little more than two ticks


async def main() -> None:
    forecasts = AIOKafkaConsumer("twincast.forecasts.v1", bootstrap_servers=os.environ["TWINCAST_BOOTSTRAP"])
    async with forecasts:
        heard_s = time.monotonic()
        while True:
            found = await forecasts.getmany(timeout_ms=1000)
            for message in (record for records in found.values() for record in records):
                heard_s, forecast = time.monotonic(), json.loads(message.value)
                risks = [risk for h in forecast["scenarios"][0]["horizons"] for risk in h.get("slo_risks", [])]
                worst = max((risk["breach_probability"] for risk in risks), default=0.0)
                if forecast["authority"] != "advisory" and worst > 0.5:
                    print(f"scale out: {worst:.0%} that a target is missed ({forecast['phase']} forecast)", flush=True)
                else:
                    print(f"stay: {worst:.0%}, {forecast['authority']}", flush=True)
            if time.monotonic() - heard_s > STALE_AFTER_S:
                print("forecasts are stale: scaling on the queue that can be seen, as without a twin", flush=True)


asyncio.run(main())

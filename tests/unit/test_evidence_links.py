"""KV transfer between prefill and decode engines in evidence: what loads tell, what a twin varies, what it refuses."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from schemas.requests import PrefillChunk, RequestFinished
from tests.made_evidence import costs, half_loaded
from tests.made_jobs import COST, config
from tests.made_known import finished, recorded, served
from twin.engine.cluster_types import KvLink
from twin.evidence.chain import Comparison, chain
from twin.evidence.hypotheses import Differences, Turn, kv_transfer
from twin.evidence.kv_transfer import LEAST_LOADS, NO_LINK, NOT_VARIED, fitted_link, load_ratio, scaled
from twin.evidence.measure import Judging
from twin.evidence.twin_runs import Twin
from twin.evidence.window import Window
from twin.job import FrontendOverheads
from twin.known.requests import known_requests
from twin.known.run import KnownEngine

LINK = KvLink(200_000_000, 50_000_000_000)
"""0.2 ms a token and 50 ms: slow, so that it is seen."""
ENGINES = tuple(
    KnownEngine(replace_role, COST)
    for replace_role in (config(engine="p0", role="prefill"), config(engine="d0", role="decode"))
)


def loads(link: KvLink, count: int = 40) -> list[RequestFinished]:
    tokens = [50 + 7 * i for i in range(count)]
    return [
        finished(
            i,
            float(i),
            isl_tokens=each,
            chunks=(
                PrefillChunk(
                    chunk=0,
                    first_token=0,
                    tokens=each,
                    hit_tokens=each,
                    kv_load_us=round((link.fixed_ps + link.token_ps * each) / 1e6),
                ),
            ),
        )
        for i, each in enumerate(tokens)
    ]


def apart(link: KvLink, *, told: bool = True, name: str = "made") -> Window:
    """A window of a prefill and a decode engine with this link between them."""
    requests = half_loaded(count=120)
    run = served(requests, *ENGINES, routing="least_outstanding", link=link)
    seen = known_requests(recorded(requests, run), requests.t0_us)
    return Window(
        source=name,
        deployment="d",
        from_s=0.0,
        to_s=float(np.nanmax(seen.last_s)) + 1e-6,
        requests=seen,
        members=np.ones(len(seen), np.bool_),
        steps={},
        finished=tuple(loads(link)) if told else (),
        configs=tuple(engine.config for engine in ENGINES),
        overheads=FrontendOverheads(to_client_s=(0.002,)),
    )


def compared(base: Window, candidate: Window, **fields: object) -> Comparison:
    given = {"costs": costs(COST), "step_costs": {}, "judging": Judging(block_s=7.0), **fields}
    return Comparison(base=base, candidate=candidate, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("link", [LINK, KvLink(3_000_000), KvLink(0, 70_000_000_000)])
def test_loads_on_a_line_give_that_line_back(link: KvLink) -> None:
    found = fitted_link(loads(link))
    assert found is not None
    assert found.token_ps == pytest.approx(link.token_ps, rel=0.01, abs=20_000)
    assert found.fixed_ps == pytest.approx(link.fixed_ps, rel=0.01, abs=2_000_000)
    assert found.cv < 0.01


def test_few_loads_tell_no_link() -> None:
    assert fitted_link(loads(LINK, LEAST_LOADS - 1)) is None
    assert fitted_link([finished(i, float(i)) for i in range(100)]) is None
    assert load_ratio(loads(LINK), []) is None


def test_a_slower_link_is_a_hypothesis_and_a_like_one_is_none() -> None:
    ratio = load_ratio(loads(LINK), loads(scaled(LINK, 3.0)))
    assert ratio == pytest.approx(3.0, rel=0.01)
    assert [guess.turn.link_factor for guess in kv_transfer(Differences(load_ratio=3.0))] == [3.0]
    assert kv_transfer(Differences(load_ratio=1.1)) == kv_transfer(Differences()) == []
    assert Turn(link_factor=2.0).joined(Turn(link_factor=3.0)).link_factor == 6.0


def test_a_longer_transfer_lengthens_what_a_request_takes() -> None:
    window = apart(LINK)
    twin = Twin(window, window, costs(COST), (), link=LINK)
    times = [twin.figures(Turn(link_factor=factor))["E2E P50", ""][0] for factor in (0.5, 1.0, 2.0, 8.0)]
    assert all(low < high for low, high in pairwise(times))


def test_the_link_is_found_simulated_and_agrees() -> None:
    found = chain(compared(apart(LINK), apart(scaled(LINK, 8.0), name="slow")))
    lead = found.hypotheses[0]
    assert (lead.code, lead.span_classes) == ("kv_link", ("copy",))
    assert lead.verdict == "agrees"
    assert {effect.setting for effect in lead.effects if effect.setting.startswith("KV")} == {
        "KV transfer time factor=0.5",
        "KV transfer time factor=2",
    }
    assert "fitted to loads of the base" in found.assumptions[0]


def test_engines_apart_without_a_link_are_compared_and_not_simulated() -> None:
    found = chain(compared(apart(LINK, told=False), apart(scaled(LINK, 8.0), told=False)))
    assert NO_LINK in found.limits
    assert any(fact.changed for fact in found.facts)
    given = chain(compared(apart(LINK, told=False), apart(LINK, told=False), link=LINK))
    assert NO_LINK not in given.limits
    assert "assumed, as given" in given.assumptions[0]


def test_engines_that_keep_their_kv_say_that_no_link_was_varied() -> None:
    base = replace(apart(LINK), configs=(config(engine="p0"), config(engine="d0")))
    assert NOT_VARIED in chain(compared(base, base)).limits

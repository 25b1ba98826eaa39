"""Links that cut, reset, delay, limit, slice and half-close what goes through: the models keep every bit."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from fedstrata.experiment import Experiment
from tests.support.bad_link import BadLink
from tests.support.tiers import Lps, Tiers, outcome, small

MEGABYTE = 1_000_000
# 1.26 MB of model: two chunks, and 40 MB in all on the links
EXPERIMENT = small("model.hidden=[4200]", "training.local_steps=1", "training.global_rounds=2")
DISTURBED: list[str] = []  # one entry each time that `every` came about


@dataclass
class ProxiedTiers(Tiers):
    """Tiers whose LPSs are reached, and reach the GPS, by way of proxies; devices reach the GPS by another."""

    proxies: dict[str, list[BadLink]] = field(default_factory=dict)
    disturb: Callable[[BadLink], None] = lambda proxy: None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.direct = self.address
        self.address = (await self._proxy("lps-gps", self.direct)).address
        return self

    async def __aexit__(self, *error: object) -> None:
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.close()
        await super().__aexit__(*error)

    async def start_lps(self, name: str) -> Lps:
        proxy = await self._proxy("device-lps")
        lps = await super().start_lps(name)
        direct, lps.server.address = lps.server.address, proxy.address  # what it registers

        async def addresses() -> Mapping[str, str]:
            return {"grpc": direct}

        proxy.lead_to(addresses)
        return lps

    async def _proxy(self, link: str, address: str | None = None) -> BadLink:
        proxy = BadLink()
        await proxy.start(address)
        self.disturb(proxy)
        self.proxies.setdefault(link, []).append(proxy)
        return proxy


def every(total_bytes: int, what: Callable[[BadLink], None]) -> Callable[[BadLink], None]:
    """Do something to a proxy each time that so many bytes have gone through it."""

    def disturb(proxy: BadLink) -> None:
        done = 0

        def look(passed: int) -> None:
            nonlocal done
            if passed // total_bytes > done:
                done = passed // total_bytes
                DISTURBED.append(proxy.address)
                what(proxy)

        proxy.on_bytes = look

    return disturb


def cut_for_a_moment(proxy: BadLink) -> None:
    proxy.cut()
    asyncio.get_running_loop().call_later(0.2, proxy.mend)


def delay(proxy: BadLink) -> None:
    proxy.latency_ns = 3_000_000


def limit(proxy: BadLink) -> None:
    proxy.rate = 8 * 30 * MEGABYTE


def slice_it(proxy: BadLink) -> None:
    proxy.slice_bytes = 1013


async def models_of(experiment: Experiment, folder: Path, disturb: Callable[[BadLink], None]) -> object:
    async with ProxiedTiers(experiment, folder / "run", disturb=disturb) as tiers:
        await tiers.start_devices()
        record = await tiers.ended()
        assert record.summary.status == "completed"
        assert {link for link, proxies in tiers.proxies.items() if any(p.passed_bytes for p in proxies)} == {
            "device-lps",
            "lps-gps",
        }
        return outcome(tiers.run.record_folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    return asyncio.run(models_of(EXPERIMENT, tmp_path_factory.mktemp("links"), lambda proxy: None))


@pytest.mark.runs
@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(every(5 * MEGABYTE, cut_for_a_moment), id="cut"),
        pytest.param(every(3 * MEGABYTE + 333_333, BadLink.reset), id="reset"),
        pytest.param(every(4 * MEGABYTE + 77_777, BadLink.half_close), id="half-close"),
        pytest.param(delay, id="delay"),
        pytest.param(limit, id="limit"),
        pytest.param(slice_it, id="slice"),
    ],
)
async def test_a_bad_link_changes_no_bit_of_the_result(
    tmp_path: Path, undisturbed: object, disturb: Callable[[BadLink], None]
) -> None:
    DISTURBED.clear()
    assert await models_of(EXPERIMENT, tmp_path, disturb) == undisturbed
    assert disturb in {delay, limit, slice_it} or len(DISTURBED) >= 3

"""The way to the server: over sockets and in real time, or in this very process and in virtual time."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from cadenza.clock import Anchor, MonotonicClock, anchor
from cadenza.engine import profile
from cadenza.engine.api import child
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.text import output_token
from cadenza.engine.build import build_core
from cadenza.load.fetch import Headers
from cadenza.load.memory import MemoryTransport, Peer
from cadenza.load.sockets import SocketTransport
from cadenza.load.target import IN_PROCESS, Target, resolve
from cadenza.load.tls import tls_context
from cadenza.measure.plan import Phrasing
from cadenza.measure.preflight import examine
from cadenza.measure.run import Access
from cadenza.measure.workers import count_workers, is_here
from cadenza.spec import Credentials, Spec
from cadenza.store.environment import usable_cores
from cadenza.store.manifest import Server


class Reached(NamedTuple):
    """A server that has passed the preflight.

    anchor           of the transport's clock; virtual time began at 0, before the preflight
    make_scraper     for reading pages in real time, whatever the clock of the run; None: virtual time
    targets, headers   its base URLs, and the headers of every request
    server_here      it runs on this machine, by its address
    """

    server: Server
    access: Access
    anchor: Anchor
    make_scraper: Callable[[], SocketTransport] | None
    targets: Sequence[Target]
    headers: Headers
    server_here: bool


def reach(spec: Spec, credentials: Credentials, stack: ExitStack) -> Reached:
    """Connect to the spec's server, or start its engine, and examine it; `stack` closes what was opened.

    Raises what `examine` raises, and CadenzaError for an engine that does not start.
    """
    if spec.engine is not None:
        credentials = Credentials()  # a key is for real servers
        profile.load(spec.engine)  # an unknown name is an error here, before a process is started with it
    return _in_memory(spec, credentials) if spec.virtual else _over_sockets(spec, credentials, stack)


def virtual_engine(spec: Spec) -> Peer:
    """The engine of `spec`, without its sockets. UsageError: no such profile, or it has no data for the timing law."""
    assert spec.engine is not None
    served = profile.load(spec.engine)
    return HttpApi(served, core=build_core(served, spec.timing, output_token=output_token))


def _in_memory(spec: Spec, credentials: Credentials) -> Reached:
    transport = MemoryTransport(virtual_engine(spec))
    began = anchor(transport.clock)
    phrasing = Phrasing(spec, credentials, [IN_PROCESS])
    server = examine(transport, phrasing, spec, credentials)
    targets = phrasing.targets
    return Reached(server, Access(transport, phrasing), began, None, targets, (), server_here=False)


def _over_sockets(spec: Spec, credentials: Credentials, stack: ExitStack) -> Reached:
    urls = spec.urls
    if spec.engine is not None:
        urls = (stack.enter_context(child.start(spec.engine, spec.speed, spec.timing)).url,)
    targets = [resolve(url) for url in urls]
    make_context = partial(tls_context, spec.verify_tls)
    phrasing = Phrasing(spec, credentials, targets)
    with SocketTransport(make_context=make_context) as transport:
        server = examine(transport, phrasing, spec, credentials)
    clock = MonotonicClock(spec.speed)
    make_transport = partial(SocketTransport, clock, make_context)
    make_scraper = partial(SocketTransport, make_context=make_context)
    here = is_here(targets)
    workers = partial(count_workers, spec, cores=usable_cores(), server_here=here)
    transport = stack.enter_context(make_transport())
    headers = credentials.as_headers()
    access = Access(transport, phrasing, make_transport, workers)
    return Reached(server, access, anchor(clock), make_scraper, targets, headers, here)

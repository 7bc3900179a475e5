"""`cadenza probe`: what a server is, and how it answers one short request."""

import argparse
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    from cadenza.cli.flags import add_key_file
    from cadenza.spec import APIS

    parser.description = "Identify a server: models, version, usage, tokens an event, accepted fields."
    parser.add_argument("url", metavar="URL", help="base URL, e.g. http://localhost:8000")
    parser.add_argument("--model", action="append", metavar="NAME", help="model to try (default: each that is served)")
    parser.add_argument("--api", choices=APIS, default="chat", help="default: %(default)s")
    add_key_file(parser)
    parser.add_argument("--header", action="append", metavar="'N: V'", help="extra header")
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the preflight's screen; TargetError where the server does not answer as it should."""
    from functools import partial

    import msgspec

    from cadenza.cli.options import read_credentials
    from cadenza.load.sockets import SocketTransport
    from cadenza.load.target import resolve
    from cadenza.load.tls import tls_context
    from cadenza.measure.plan import Phrasing
    from cadenza.measure.preflight import examine
    from cadenza.report.server import describe_server
    from cadenza.spec import Spec

    spec = Spec(urls=(args.url,), models=tuple(args.model or ("all",)), api=args.api)
    credentials = read_credentials(args)
    with SocketTransport(make_context=partial(tls_context, not args.insecure)) as transport:
        phrasing = Phrasing(spec, credentials, [resolve(args.url)])
        server = examine(transport, phrasing, spec, credentials)
    if args.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(server), indent=1) + b"\n")
    else:
        print(describe_server(server, args.url))
    return 0

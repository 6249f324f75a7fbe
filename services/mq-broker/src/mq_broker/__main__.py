"""The command line: `python -m mq_broker [-c FILE] [-n host:port;host:port] [key=value ...]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; a port in use is explained by us, in one sentence

import telemetry
from mq_broker import __version__
from mq_broker.app import serve
from mq_broker.config import BrokerConfig
from mqproto.conf import ConfigError, build_config, parse_properties, read_properties

if sys.platform == "win32":
    from asyncio import run
else:
    from uvloop import run

SERVICE = "mq-broker"
EXIT_BAD_CONFIGURATION = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the broker; returns 0 stopped as asked, 1 could not start, 2 bad configuration, 3 the disk failed."""
    try:
        config = _parse(arguments)
    except ConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    telemetry.configure(SERVICE, config.log_level)
    return run(serve(config))


def _parse(arguments: list[str] | None) -> BrokerConfig:
    parser = argparse.ArgumentParser(prog=SERVICE, description="The broker of the Hourglass queue.")
    parser.add_argument("-c", "--config-file", type=Path, metavar="FILE", help="key=value lines, as in broker.conf")
    parser.add_argument("-n", "--namesrv-addr", metavar="HOST:PORT;...", help="name servers; wins over the file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="win over the file, such as listenPort=10921")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    options = parser.parse_args(arguments)
    pairs = read_properties(options.config_file) if options.config_file else {}
    pairs |= {"namesrvAddr": options.namesrv_addr} if options.namesrv_addr else {}
    return build_config(BrokerConfig, pairs | parse_properties(options.overrides, "command line"))


if __name__ == "__main__":
    sys.exit(main())

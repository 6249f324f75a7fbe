"""Connections that are broken by the name of their peer."""

from __future__ import annotations

import socket

from osenv.network import break_connections


def test_the_connections_to_these_peers_are_shut_down_and_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
        served = [server.accept()[0] for _ in clients]
        host, port = clients[0].getsockname()
        assert break_connections([f"ipv4:{host}:{port}", "ipv4:192.0.2.1:9", "memory"]) == 1
        assert clients[0].recv(1) == b""
        served[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        for one in (*clients, *served):
            one.close()

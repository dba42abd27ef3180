"""The one-host cluster starts although another process takes one of its ports first."""

from __future__ import annotations

import socket

import pytest
from tests.slurm.conftest import one_host


@pytest.mark.skipif(one_host.why_not() is not None, reason=str(one_host.why_not()))
def test_a_port_that_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    choose, tries = one_host.free_ports, []
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()

        def ports(count: int) -> list[int]:
            tries.append(count)
            return [taken.getsockname()[1], *choose(count - 1)] if len(tries) == 1 else choose(count)

        monkeypatch.setattr(one_host, "free_ports", ports)
        cluster = one_host.Cluster()
        supervisor = one_host.Supervisor(cluster.folder)
        try:
            assert supervisor.start(), cluster.logs()
            assert len(tries) == 2
        finally:
            supervisor.stop()
            cluster.stop()

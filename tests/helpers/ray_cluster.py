"""A Ray cluster of several node processes on the loopback interface, silent, and other servers for tests."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before Ray is imported: it takes the loopback address for the machine's own otherwise.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Workers import what tests do.
_HELPERS = Path(__file__).resolve().parent


class Nodes:
    """The nodes of a cluster, one core each, beside a head that works nothing."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, cores: int = 1) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=cores, **_COMMON))

    def kill(self) -> None:
        """Kills the oldest node, as a machine that fails."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)


_COMMON = {"include_dashboard": False, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
# Processes that nothing here needs, each of which imports Ray: a node that is not up in half a minute is given up.
_COMMON["include_log_monitor"] = False


class _Patience:
    """A clock for the module of Ray that gives a node half a minute to start: too little on a busy machine."""

    sleep = staticmethod(time.sleep)
    monotonic = staticmethod(lambda: time.monotonic() / 6)
    time = staticmethod(time.time)


@contextmanager
def ray_cluster(nodes: int) -> Iterator[Nodes]:
    """A cluster with so many nodes of one core."""
    paths = [str(_HELPERS), str(_HELPERS.parents[1]), os.environ.get("PYTHONPATH", "")]
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, paths)), OMP_NUM_THREADS="1")
    from ray._private import node, utils
    from ray.cluster_utils import Cluster

    node.time = _Patience  # type: ignore[attr-defined]
    in_main, handle = threading.main_thread(), utils.set_sigterm_handler
    # Nodes are added by threads too, which may not set how the process takes signals.
    utils.set_sigterm_handler = lambda handler: handle(handler) if threading.current_thread() is in_main else None
    logging.getLogger("ray").setLevel(logging.ERROR)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "no_monitor": True, **_COMMON})
    result = Nodes(cluster)
    try:
        for _ in range(nodes):
            result.add()
        yield result
    finally:
        import ray

        utils.set_sigterm_handler = handle
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)

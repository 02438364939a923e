# SPDX-License-Identifier: Apache-2.0
"""libvirt's event loop: one for the whole process, on a thread of its own, and never waited for.

Callbacks run on it, so they do nothing that could take time.
"""

import logging
import threading
from typing import Any

from holdfast.drivers.guests import PORT
from holdfast.model.errors import DriverError

LOG = logging.getLogger(__name__)
_lock = threading.Lock()
_running: list[threading.Thread] = []  # libvirt has one loop in a process, so this is global too


def running() -> Any:
    """libvirt itself, with its loop running: must be asked for before the first connection."""
    try:
        import libvirt
    except ImportError as error:
        raise DriverError(
            PORT,
            "libvirt-python is not installed: pip install 'holdfast[libvirt]', or Debian's"
            " python3-libvirt",
            retryable=False,
        ) from error
    with _lock:
        if not _running:
            libvirt.registerErrorHandler(lambda *_: None, None)  # it prints what it raises as well
            libvirt.virEventRegisterDefaultImpl()
            # with nothing to wait for it would sleep through what is added later
            libvirt.virEventAddTimeout(1000, lambda *_: None, None)
            thread = threading.Thread(target=_forever, name="libvirt-events", daemon=True)
            thread.start()
            _running.append(thread)
    return libvirt


def _forever() -> None:
    import libvirt

    while True:
        try:
            if libvirt.virEventRunDefaultImpl() < 0:
                LOG.error("libvirt's event loop failed once and goes on")
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("libvirt's event loop: unforeseen")

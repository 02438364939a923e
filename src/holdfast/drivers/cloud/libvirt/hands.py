# SPDX-License-Identifier: Apache-2.0
"""What is done to a domain on one host: small deeds, each of which may be repeated."""

from typing import Any

import libvirt

#: What goes with the definition of a guest that lives elsewhere now; its disks and firmware stay.
FORGET = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
)


def find(conn: Any, server_id: str) -> Any:
    """The domain, None if there is none."""
    try:
        return conn.lookupByUUIDString(server_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def define(conn: Any, xml: str) -> None:
    """Without autostart, which it is given when it has come to stay."""
    conn.defineXML(xml).setAutostart(0)


def autostart(conn: Any, server_id: str) -> None:
    conn.lookupByUUIDString(server_id).setAutostart(1)


def start(conn: Any, server_id: str) -> None:
    domain = conn.lookupByUUIDString(server_id)
    if not domain.isActive():
        domain.create()


def stop(conn: Any, server_id: str) -> None:
    """As if its plug were pulled: recovery has no use for a guest's consent."""
    domain = find(conn, server_id)
    if domain is None or not domain.isActive():
        return
    try:
        domain.destroy()
    except libvirt.libvirtError:
        if domain.isActive():  # it may have died meanwhile
            raise


def forget(conn: Any, server_id: str) -> bool:
    """Undefine it unless it runs; whether it does."""
    domain = find(conn, server_id)
    if domain is None:
        return False
    if domain.isActive():
        return True
    if domain.isPersistent():
        domain.undefineFlags(FORGET)
    # A start that came in between has made it one that runs and is not defined.
    late = find(conn, server_id)
    return late is not None and bool(late.isActive())

# SPDX-License-Identifier: Apache-2.0
"""Recovery of failed hosts, guests and nova-compute services.

`intake` turns a report into an incident. `guards` decides whether Holdfast may act. Durable
steps perform the recovery (`host`, `guest`; `evacuation` for each server of a host).
`host_return` puts a host that comes back into use again.
"""

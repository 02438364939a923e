# SPDX-License-Identifier: Apache-2.0
"""What the middle needs of the outside, as Protocols: clock, cloud, ledger, operations, manager."""

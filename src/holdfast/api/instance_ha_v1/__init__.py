# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract, version 1 (Masakari's): one file per noun.

From 1.4 on answers say more than the contract does; requests may ask for it at any version.
"""

#: The first version whose answers hold keys of ours.
OURS = (1, 4)

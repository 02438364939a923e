# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract, version 1 (Masakari's). So far its version documents, in `api.versions`."""

# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract, version 1 (Masakari's). So far: version documents, `api.versions`."""

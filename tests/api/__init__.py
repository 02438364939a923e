# SPDX-License-Identifier: Apache-2.0
"""The API as clients meet it: in process, on a real database and a simulated cloud."""

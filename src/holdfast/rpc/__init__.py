# SPDX-License-Identifier: Apache-2.0
"""Commands between processes. Without a broker there is nothing here: API and manager share one process."""

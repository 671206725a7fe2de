# SPDX-License-Identifier: Apache-2.0
"""The cluster side: the one door to the Kubernetes API, and so to kubernetes_asyncio and aiohttp."""

# SPDX-License-Identifier: Apache-2.0
"""The only package that accesses the Kubernetes API, and so kubernetes_asyncio and aiohttp."""

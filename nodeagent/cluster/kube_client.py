# SPDX-License-Identifier: Apache-2.0
"""Imports kubernetes_asyncio without the 20 MB of generated classes that its ``__init__`` modules import.

Only its credential loader and its client are used, and they need none of these classes. Empty modules replace
the packages that contain them, so 15 of nearly 900 modules are loaded. Typed calls (``CoreV1Api``) do not
work then, but requests with plain paths and dicts do. Only ``api`` calls this module, at the first request.
"""

from __future__ import annotations

import importlib.util
import ssl
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from nodeagent.base.errors import InternalError

_IMPORTING = threading.Lock()
_ROOT = "kubernetes_asyncio"
_CLIENT = f"{_ROOT}.client"
_UNUSED = {
    "urllib3": "",
    "dateutil": "",
    "dateutil.parser": "parse",
    "multiprocessing": "",
    "multiprocessing.pool": "ThreadPool",
}
"""Module → the name that the library imports from it; nodeagent never calls it."""


class Kubernetes(NamedTuple):
    """The parts of the library that are used, and the exceptions that requests may raise."""

    client: Any  # class ApiClient
    configuration: Any  # class Configuration
    config: Any  # module kubernetes_asyncio.config
    errors: tuple[type[Exception], ...]
    tls_errors: tuple[type[Exception], ...]


def kubernetes() -> Kubernetes:
    """Import the library once, which takes 0.2 s; the sessions of two components may need it at once.

    :raises InternalError: if the whole library was imported before.
    """
    with _IMPORTING:
        return _import_library()


@cache
def _import_library() -> Kubernetes:
    if _ROOT in sys.modules:
        raise InternalError(f"{_ROOT} was imported whole; import it through {__name__}")
    spec = importlib.util.find_spec(_ROOT)
    if spec is None or not spec.submodule_search_locations:
        raise InternalError(f"{_ROOT} is not installed")
    directories = list(spec.submodule_search_locations)
    client = _add_empty_module(_CLIENT, [f"{each}/client" for each in directories])
    models = _add_empty_module(f"{_CLIENT}.models", ())
    root = _add_empty_module(_ROOT, directories)
    vars(root)["client"], vars(client)["models"] = client, models
    with _without_unused_libraries(), _without_system_certificates():
        configuration = import_module(f"{_CLIENT}.configuration").Configuration
        vars(client)["Configuration"] = configuration  # credential loaders import both names from there
        vars(client)["ApiClient"] = import_module(f"{_CLIENT}.api_client").ApiClient
        http = import_module("aiohttp")
    return Kubernetes(
        client=vars(client)["ApiClient"],
        configuration=configuration,
        config=import_module(f"{_ROOT}.config"),
        errors=(http.ClientError, ValueError),  # ValueError: a header or an address that cannot be sent
        tls_errors=(http.ClientSSLError,),
    )


def is_loaded() -> bool:
    """Return True if the library was imported."""
    return _import_library.cache_info().currsize > 0


@contextmanager
def _without_unused_libraries() -> Iterator[None]:
    """Replace three unused libraries by empty modules during the import, which saves 4.5 MiB.

    dateutil parses dates of typed responses; urllib3 is needed for basic authentication, which Kubernetes
    does not accept since 1.19; the threads of multiprocessing are for programs without an event loop.
    """
    absent = [name for name in _UNUSED if name not in sys.modules]
    for name in absent:
        vars(_add_empty_module(name, ()))[_UNUSED[name]] = None
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def _without_system_certificates() -> Iterator[None]:
    """Prevent TLS contexts from loading the host's certificates during the import, which saves 2.1 MiB.

    On import, aiohttp 3.14 creates two contexts for connections without their own, but each client of
    kubernetes_asyncio has one. Without certificates, the first context would reject every server; the
    second never verifies servers.
    """
    original = ssl.SSLContext.set_default_verify_paths
    setattr(ssl.SSLContext, original.__name__, lambda _: None)
    try:
        yield
    finally:
        setattr(ssl.SSLContext, original.__name__, original)


def _add_empty_module(name: str, directories: Iterable[str]) -> ModuleType:
    """Return an empty package whose submodules are imported from those directories."""
    module = ModuleType(name)
    module.__path__ = list(directories)
    sys.modules[name] = module
    return module

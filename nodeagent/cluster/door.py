# SPDX-License-Identifier: Apache-2.0
"""kubernetes_asyncio, without the 20 MB of generated classes that its own ``__init__`` modules load.

Only its credentials and its client are wanted here, and those need none of the classes: bare modules stand in
for the packages above them, so that the few modules below can be imported alone (15 of nearly 900). Typed
calls (``CoreV1Api``) do not work then; plain paths and dicts do. Nobody else imports that library.
"""

from __future__ import annotations

import importlib.util
import ssl
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from nodeagent.base.errors import InvariantBroken

_ROOT = "kubernetes_asyncio"
_CLIENT = f"{_ROOT}.client"
_UNUSED = {
    "urllib3": "",
    "dateutil": "",
    "dateutil.parser": "parse",
    "multiprocessing": "",
    "multiprocessing.pool": "ThreadPool",
}
"""Module → what is taken of it at the import, and used by no call that is made here."""


class Kubernetes(NamedTuple):
    """What is used of it: two classes, the module that reads credentials, and what requests may raise."""

    client: Any  # class ApiClient
    configuration: Any  # class Configuration
    config: Any  # module kubernetes_asyncio.config
    errors: tuple[type[Exception], ...]
    tls_errors: tuple[type[Exception], ...]


@cache
def kubernetes() -> Kubernetes:
    """Load it, once. :raises InvariantBroken: if it was imported in another way, whole, before."""
    if _ROOT in sys.modules:
        raise InvariantBroken(f"{_ROOT} was imported past its door")
    places = _places()
    client = _bare(_CLIENT, [f"{place}/client" for place in places])
    models = _bare(f"{_CLIENT}.models", ())
    root = _bare(_ROOT, places)
    vars(root)["client"], vars(client)["models"] = client, models
    with _stand_ins(), _nobody_trusted():
        configuration = import_module(f"{_CLIENT}.configuration").Configuration
        vars(client)["Configuration"] = configuration  # readers of credentials take both from there
        vars(client)["ApiClient"] = import_module(f"{_CLIENT}.api_client").ApiClient
        http = import_module("aiohttp")
    return Kubernetes(
        client=vars(client)["ApiClient"],
        configuration=configuration,
        config=import_module(f"{_ROOT}.config"),
        errors=(http.ClientError, ValueError),  # ValueError: a header or an address that cannot be sent
        tls_errors=(http.ClientSSLError,),
    )


def is_open() -> bool:
    """True if it is loaded."""
    return kubernetes.cache_info().currsize > 0


@contextmanager
def _stand_ins() -> Iterator[None]:
    """For the time of the import bare modules stand for three libraries, which take 4.5 MiB.

    Its client parses dates of typed answers by one; another is for names and passwords, which Kubernetes
    takes no more (since 1.19); threads of the third are for calls from programs without an event loop.
    """
    absent = [name for name in _UNUSED if name not in sys.modules]
    for name in absent:
        vars(_bare(name, ()))[_UNUSED[name]] = None
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def _nobody_trusted() -> Iterator[None]:
    """For the time of the import no TLS context reads whom the host trusts.

    aiohttp 3.14 makes two as it is imported, which took 2.1 MiB. They are for connections without a context
    of their own; every client of kubernetes_asyncio has one, made with the client. What took the first all
    the same would refuse every server; the second, for callers that want no check, checks none either way.
    """
    usual = ssl.SSLContext.set_default_verify_paths
    setattr(ssl.SSLContext, usual.__name__, lambda _: None)
    try:
        yield
    finally:
        setattr(ssl.SSLContext, usual.__name__, usual)


def _places() -> tuple[str, ...]:
    """The directories of the package, found without running it."""
    spec = importlib.util.find_spec(_ROOT)
    if spec is None or not spec.submodule_search_locations:
        raise InvariantBroken(f"{_ROOT} is not installed")
    return tuple(spec.submodule_search_locations)


def _bare(name: str, places: Iterable[str]) -> ModuleType:
    """An empty package below which the modules of those directories can be imported."""
    module = ModuleType(name)
    module.__path__ = list(places)
    sys.modules[name] = module
    return module

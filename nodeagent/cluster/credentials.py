# SPDX-License-Identifier: Apache-2.0
"""Who we are to the API server, and where it is: a kubeconfig, or the service account of a pod.

They are read anew whenever a client is made: tokens and certificates change while the daemon lives. The token
of a service account is read again every minute besides. Knows nothing of requests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from nodeagent.base import hints
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import account
from nodeagent.cluster.door import Kubernetes


class Credentials(NamedTuple):
    """``kubeconfig``: the path of one, or of several as kubectl takes them ("a:b").

    "" stands for the service account in that directory.
    """

    kubeconfig: str = ""
    account: Path = account.DIRECTORY
    environ: Mapping[str, str] = os.environ

    def __str__(self) -> str:
        """In words."""
        return f"the kubeconfig {self.kubeconfig}" if self.kubeconfig else "the service account of this pod"

    def _look(self) -> None:
        """:raises OSError: if none of the files can be seen; the library only warns of that."""
        *_, last = paths = self.kubeconfig.split(os.pathsep)
        if self.kubeconfig and not any(map(os.path.exists, paths)):
            os.stat(last)  # noqa: PTH116  for what is wrong with it

    async def load(self, kubernetes: Kubernetes, limit: float) -> Any:
        """The library's Configuration. ``limit``: seconds for a program that a kubeconfig names.

        :raises ClusterUnavailable: if they cannot be used.
        """
        configuration = kubernetes.configuration()
        try:
            self._look()
            with anyio.fail_after(limit):
                await self._read(kubernetes, configuration)
        except TimeoutError as error:
            raise self._useless(f"its program did not end within {limit:g} s") from error
        except OSError as error:
            raise self._useless(hints.strerror(error), hints.for_errno(error, "read")) from error
        except Exception as error:  # of a foreign reader of foreign files: KeyError, TypeError, YAMLError, …
            raise self._useless(_words(error)) from error
        return configuration

    async def _read(self, kubernetes: Kubernetes, configuration: Any) -> None:
        if self.kubeconfig:
            await kubernetes.config.load_kube_config(
                config_file=self.kubeconfig, client_configuration=configuration, persist_config=False
            )
        else:
            kubernetes.config.load_incluster_config(
                client_configuration=configuration,
                token_filename=str(self.account / "token"),
                cert_filename=str(self.account / "ca.crt"),
                environ=self.environ,
            )

    def _useless(self, why: str, hint: str = "") -> ClusterUnavailable:
        if self.kubeconfig:
            return ClusterUnavailable(
                f"the kubeconfig {self.kubeconfig} cannot be used: {why}",
                hint or "check it with: kubectl --kubeconfig FILE get nodes",
            )
        return ClusterUnavailable(
            f"there is no usable service account in {self.account}: {why}",
            "run nodeagent in a pod that has one, or name a kubeconfig",
        )


def _words(error: Exception) -> str:
    """What a foreign error says, on one line: files of credentials hold secrets, so no more than that."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]

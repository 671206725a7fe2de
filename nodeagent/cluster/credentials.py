# SPDX-License-Identifier: Apache-2.0
"""Credentials for the API server, and its address: a kubeconfig, or the service account of a pod.

They are read for each new client, since tokens and certificates change while the daemon runs. The library
reads the token of a service account again every minute besides. Each start asks ``is_followed``; the library
is not loaded for that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from nodeagent.base import hints
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.model.spec import ClusterMode

if TYPE_CHECKING:
    from nodeagent.cluster.kube_client import Kubernetes

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # the kubelet mounts it into pods
HOST = "KUBERNETES_SERVICE_HOST"


def has_service_account(environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT) -> bool:
    """True if there is a token, and the address of an API server. Does not read the token."""
    return bool(environ.get(HOST)) and (directory / "token").is_file()


def is_followed(following: ClusterMode) -> bool:
    """True if this process follows the cluster."""
    return following is ClusterMode.YES or (following is ClusterMode.AS_POD and has_service_account())


class Credentials(NamedTuple):
    """``kubeconfig``: the path of one, or of several as kubectl accepts them ("a:b").

    "": the service account in that directory.
    """

    kubeconfig: str = ""
    account: Path = SERVICE_ACCOUNT
    environ: Mapping[str, str] = os.environ

    def __str__(self) -> str:
        """In words."""
        return f"the kubeconfig {self.kubeconfig}" if self.kubeconfig else "the service account of this pod"

    async def load(self, kubernetes: Kubernetes, limit: float) -> Any:
        """The library's Configuration. ``limit``: seconds for a program that a kubeconfig names.

        :raises ClusterUnavailable: if they cannot be used.
        """
        configuration = kubernetes.configuration()
        try:
            self._check_files()
            with anyio.fail_after(limit):
                await self._read(kubernetes, configuration)
        except TimeoutError as error:
            raise self._unusable(f"its program did not end within {limit:g} s") from error
        except OSError as error:
            raise self._unusable(hints.strerror(error), hints.for_errno(error, "read")) from error
        except Exception as error:  # of a foreign reader of foreign files: KeyError, TypeError, YAMLError, …
            # files of credentials hold secrets: one line of the error, and not more
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            raise self._unusable(text) from error
        return configuration

    def _check_files(self) -> None:
        """:raises OSError: if none of the files can be read; the library only warns of that."""
        *_, last = paths = self.kubeconfig.split(os.pathsep)
        if self.kubeconfig and not any(map(os.path.exists, paths)):
            os.stat(last)  # noqa: PTH116  raises the error to report

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

    def _unusable(self, why: str, hint: str = "") -> ClusterUnavailable:
        if self.kubeconfig:
            return ClusterUnavailable(
                f"the kubeconfig {self.kubeconfig} cannot be used: {why}",
                hint or "check it with: kubectl --kubeconfig FILE get nodes",
            )
        return ClusterUnavailable(
            f"there is no usable service account in {self.account}: {why}",
            "run nodeagent in a pod that has one, or name a kubeconfig",
        )

# SPDX-License-Identifier: Apache-2.0
"""Loads the address of the API server and the credentials: a kubeconfig, or the service account of a pod.

The credentials are loaded for each new client, because tokens and certificates change while the daemon runs;
the library also reads a service account token again every minute. ``is_followed`` does not import the
library, because it is called at each start of the daemon.
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

# the kubelet mounts the service account into pods here
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST = "KUBERNETES_SERVICE_HOST"


def has_service_account(environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT) -> bool:
    """Return True if a token file and an API server's address exist; the token itself is not read."""
    return bool(environ.get(HOST)) and (directory / "token").is_file()


def is_followed(following: ClusterMode) -> bool:
    """Return True if this process watches the cluster."""
    return following is ClusterMode.YES or (following is ClusterMode.AS_POD and has_service_account())


class Credentials(NamedTuple):
    """The location of the credentials. ``kubeconfig`` is a path, or several as kubectl accepts them ("a:b").

    If it is "", the service account in the directory ``account`` is used.
    """

    kubeconfig: str = ""
    account: Path = SERVICE_ACCOUNT
    environ: Mapping[str, str] = os.environ

    def __str__(self) -> str:
        """Return a description for messages."""
        return f"the kubeconfig {self.kubeconfig}" if self.kubeconfig else "the service account of this pod"

    async def load(self, kubernetes: Kubernetes, limit: float) -> Any:
        """Return the library's Configuration.

        ``limit`` is the timeout in seconds for an exec plugin of a kubeconfig.

        :raises ClusterUnavailable: if the credentials cannot be used.
        """
        configuration = kubernetes.configuration()
        try:
            self._check_files()
            with anyio.fail_after(limit):
                await self._read(kubernetes, configuration)
        except TimeoutError as error:
            raise self._unusable(f"its exec plugin did not end within {limit:g} s") from error
        except OSError as error:
            raise self._unusable(hints.strerror(error), hints.for_errno(error, "read")) from error
        # the library raises many types for invalid files: KeyError, TypeError, YAMLError, …
        except Exception as error:
            # files of credentials contain secrets: quote only one line of the error
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            raise self._unusable(text) from error
        return configuration

    def _check_files(self) -> None:
        """Check that at least one file can be read; the library only warns.

        :raises OSError: if none can be read.
        """
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

# SPDX-License-Identifier: Apache-2.0
"""Throw-away certificates for the control plane, made with the openssl program, valid for two days."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e import processes

SERVICE_ADDRESS = "10.0.0.1"
_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
[leaf]
basicConstraints = critical,CA:FALSE
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1,IP:{service},DNS:localhost,DNS:kubernetes.default.svc
"""


class Certificates:
    """An authority below ``directory``, and what it has signed: files NAME.crt and NAME.key."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._config = directory / "openssl.cnf"
        self._config.write_text(_CONFIG.format(service=SERVICE_ADDRESS))
        self._make("ca", "/CN=nodeagent-e2e", "authority")

    def sign(self, name: str, subject: str) -> None:
        """Make NAME.crt and NAME.key; the subject is what Kubernetes takes as user (CN) and groups (O)."""
        ca, key = self.path("ca.crt"), self.path("ca.key")
        self._make(name, subject, "leaf", "-CA", ca, "-CAkey", key)

    def path(self, name: str) -> str:
        """The path of one of the files."""
        return str(self.directory / name)

    def kubeconfig(self, name: str, server: str, token: str = "") -> str:
        """The path of a kubeconfig for that client certificate, or for a token."""
        certificate = {
            "client-certificate": self.path(f"{name}.crt"),
            "client-key": self.path(f"{name}.key"),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "e2e", "cluster": {"server": server, "certificate-authority": self.path("ca.crt")}}
            ],
            "users": [{"name": name, "user": {"token": token} if token else certificate}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "current-context": "e2e",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return str(path)

    def _make(self, name: str, subject: str, extensions: str, *signer: str) -> None:
        processes.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-nodes", "-days", "2", "-config", str(self._config), "-extensions", extensions),
                *("-subj", subject, "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.crt")),
                *signer,
            ]
        )

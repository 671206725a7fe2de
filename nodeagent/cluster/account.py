# SPDX-License-Identifier: Apache-2.0
"""Whether a pod's service account is at hand: so ``kubevirt.enabled: auto`` is decided.

Each start asks this, so nothing of the cluster's code is loaded for it. Never reads the token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nodeagent.model.spec import Following

DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where the kubelet mounts it into each pod
HOST = "KUBERNETES_SERVICE_HOST"


def there(environ: Mapping[str, str] = os.environ, directory: Path = DIRECTORY) -> bool:
    """True if there is a token to try, and an address to try it at."""
    return bool(environ.get(HOST)) and (directory / "token").is_file()


def reaches(following: Following) -> bool:
    """True if the cluster is to be followed from here."""
    return following is Following.YES or (following is Following.AS_POD and there())

# SPDX-License-Identifier: Apache-2.0
"""``python -m builder.chart``: puts the schema of the daemon's settings into the chart's values.schema.json.

So Helm refuses a wrong ``config`` before any node sees it. A test fails when the two differ.
"""

from __future__ import annotations

import json

from builder import source
from nodeagent import config

SCHEMA = source.PACKAGING / "helm/nodeagent/values.schema.json"


def text() -> str:
    """The file as it should be; all but the settings is taken from the file as it is."""
    document = json.loads(SCHEMA.read_text())
    settings = {key: value for key, value in config.schema().items() if key != "$schema"}
    document["properties"]["config"] = settings
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text())

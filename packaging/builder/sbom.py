# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of an artefact: a CycloneDX document that names all that is in it.

Knows the document. What is in an artefact, the modules ``vendored``, ``bundled`` and ``installed`` know. The
same parts give the same bytes: the time is that of the source, the serial number comes from the content.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.contact import OrganizationalContact
from cyclonedx.model.license import License
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.spdx import fixup_id
from packageurl import PackageURL

from builder import source

SHIPPED_AS = "nodeagent.cdx.json"
_AUTHOR = "nodeagent authors"
_UNKNOWN = uuid.UUID(int=0)


class NoLicence(Exception):
    """Raised when the licence of a part is not known; the text, in two lines, says which and what to do."""


class Part(NamedTuple):
    """Something in an artefact; ``needs`` has names of other parts; ``direct``: nodeagent itself needs it."""

    component: Component
    needs: frozenset[str] = frozenset()
    direct: bool = False


def write(path: Path, parts: Iterable[Part], kind: ComponentType = ComponentType.APPLICATION) -> Path:
    """Write the document of an artefact; its path."""
    path.write_text(document(parts, kind))
    return path


def document(parts: Iterable[Part], kind: ComponentType = ComponentType.APPLICATION) -> str:
    """The document as JSON; ``kind`` is the artefact's."""
    bom = _bom(list(parts), kind)
    bom.serial_number = uuid.uuid5(_UNKNOWN, _text(bom))
    return _text(bom)


def licences(names: Iterable[str]) -> list[License]:
    """Licences by SPDX identifier or any other name; one alone may be an expression of identifiers."""
    known, factory = list(names), LicenseFactory()
    if len(known) == 1:
        return [factory.make_from_string(known[0])]
    return [factory.make_with_id(name) if fixup_id(name) else factory.make_with_name(name) for name in known]


def hashes(digests: Iterable[str]) -> list[HashType]:
    """Hashes of SHA-256, given in hexadecimal digits."""
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in digests]


def _bom(parts: list[Part], kind: ComponentType) -> Bom:
    ours = _ours(kind)
    metadata = BomMetaData(
        component=ours,
        timestamp=datetime.fromtimestamp(source.time(), UTC),
        authors=[OrganizationalContact(name=_AUTHOR)],
        lifecycles=[PredefinedLifecycle(phase=LifecyclePhase.BUILD)],
    )
    metadata.tools.components.add(this_component())
    bom = Bom(serial_number=_UNKNOWN, metadata=metadata, components=[part.component for part in parts])
    needed = frozenset[str]().union(*(part.needs for part in parts))
    roots = [part.component for part in parts if part.direct or part.component.name not in needed]
    bom.register_dependency(ours, roots)
    for part in parts:
        bom.register_dependency(
            part.component, [other.component for other in parts if other.component.name in part.needs]
        )
    return bom


def _ours(kind: ComponentType) -> Component:
    purl = PackageURL("generic", name="nodeagent", version=source.version())
    return Component(
        name="nodeagent",
        version=source.version(),
        type=kind,
        licenses=licences(["Apache-2.0"]),
        purl=purl,
        bom_ref=str(purl),
    )


def _text(bom: Bom) -> str:
    # 1.6 and not the newest: what reads such documents lags behind
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1) + "\n"

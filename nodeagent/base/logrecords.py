# SPDX-License-Identifier: Apache-2.0
"""What may be said of nodeagent's own files on disk: a part of the catalogue in ``log``."""

from __future__ import annotations

import logging

from nodeagent.base.logevent import Event

SETTINGS_NOT_KEPT = Event(
    "settings-not-kept",
    "1ea96fd3c2704b5b9d58e0b7cc3a4f16",
    logging.WARNING,
    "the settings in force cannot be kept for a start with a wrong file: {error}",
    ("hint",),
)
VGPU_RECORD_BROKEN = Event(
    "vgpu-record-broken",
    "05064868b5d3442ea2eec0233d2611da",
    logging.WARNING,
    "which vGPU types nodeagent has set is lost: {error}",
)
DRIVERS_RECORD_BROKEN = Event(
    "drivers-record-broken",
    "aa73fc3497fe418984859bd0358c5aca",
    logging.WARNING,
    "which drivers bound functions had before is lost: {error}",
)
USB_RECORD_BROKEN = Event(
    "usb-record-broken", "e6f49fd0ab844c9a8d476aa82afbd7f9", logging.WARNING, "USB loans are lost: {error}"
)
CLUSTER_RECORD_BROKEN = Event(
    "cluster-record-broken",
    "b9509d0095444d01ae096e5a99e87fb5",
    logging.WARNING,
    "what the cluster said last is lost: {error}",
)
CLUSTER_NOT_KEPT = Event(
    "cluster-not-kept",
    "57bae57baa944888b05950e91b87b25c",
    logging.WARNING,
    "what the cluster says cannot be kept: {error}",
    ("hint",),
)
NAMES_RECORD_BROKEN = Event(
    "names-record-broken",
    "a2cc163a666c4b3d81b5479263a5f3d8",
    logging.WARNING,
    "which names were in force before is lost: {error}",
)
NAMES_UNRECORDED = Event(
    "names-unrecorded",
    "5f0c2d9be7a14c86a3d1740be6c8912d",
    logging.WARNING,
    "the names in force cannot be put on record: {error}",
    ("hint",),
)

# SPDX-License-Identifier: Apache-2.0
"""Prepares the ResourceClaims of pods before their containers start, and releases them when the pods end.

The kubelet repeats a failed Prepare only after 60 to 90 s. Therefore a Prepare waits for everything that may
end by itself: a former pod that has not ended yet, a driver that is being bound, an unreachable API server.
The last check and the publication of the claim as the user of its devices happen without an await in between,
so two claims never get one device. Then the record is saved, the files are written, and the kubelet gets the
answer.

The record survives a reboot, as the kubelet's own list of claims does. ``restore`` writes the files of the
recorded claims again before the kubelet and the container runtime need them. ``agent.dra.feature`` builds
``Claims``, and ``kubelet.dra`` calls it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio

from nodeagent.agent.core import Core
from nodeagent.agent.dra import record
from nodeagent.base import files, log, threads
from nodeagent.base.errors import ClusterUnavailable, KernelRefused
from nodeagent.cluster.api import NOT_FOUND
from nodeagent.kernel.root import Root
from nodeagent.model.claim import Claim, ClaimDevice, ClaimFile, ClaimRef
from nodeagent.model.ids import PciAddress
from nodeagent.policy import groups
from nodeagent.policy.dra import claim_files, claims
from nodeagent.policy.dra.claim_files import Node
from nodeagent.policy.dra.claims import Object, Refusal

ReadClaim = Callable[[ClaimRef, float], Awaitable[Object]]
"""Reads a claim from the API server, which it awaits until the given time of the event loop."""

METADATA = "dra-device-metadata"  # the directory of metadata files in the driver's directory
_AGAIN = "next try in about a minute"


class Claims:
    """Answers the kubelet's requests about claims, and keeps their record and their files."""

    def __init__(self, core: Core, read_claim: ReadClaim, driver: str, find_pool: Callable[[], str]) -> None:
        settings = core.settings.get()
        kubelet = Path(settings.kubelet.plugins_registry_dir).parent
        metadata = f"{kubelet}/plugins/{driver}/{METADATA}"
        self._core = core
        self._read_claim = read_claim
        self._find_pool = find_pool
        self._node = Node(driver, find_pool(), _read_boot_id(core.root), metadata)
        self._cdi_directory = core.root.path(settings.cdi.spec_dir)
        self._metadata_directory = core.root.path(metadata)
        self._locks: dict[str, anyio.Lock] = {}  # by the UID of a claim
        self._waiting: dict[str, list[anyio.CancelScope]] = {}  # running Prepares, by the UID of the claim

    @property
    def _recorded(self) -> Mapping[str, Claim]:
        return self._core.snapshots.now.claims

    # Prepare

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, Sequence[ClaimDevice] | str]:
        """Return the prepared devices of each claim by its UID, or an error text; the claims are prepared in
        parallel.
        """
        answers: dict[str, Sequence[ClaimDevice] | str] = {}

        async def prepare(ref: ClaimRef) -> None:
            answer: Claim | str = "the pod of the claim has ended"
            scopes = self._waiting.setdefault(ref.uid, [])
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                async with self._locks.setdefault(ref.uid, anyio.Lock()):
                    answer = await self._prepare(ref)
            scopes.remove(scope)
            answers[ref.uid] = answer if isinstance(answer, str) else answer.devices
            if isinstance(answer, str):
                log.event(log.CLAIM_REFUSED, object=f"claim {ref}", error=answer)
            else:
                devices = tuple(part for each in answer.devices for part in each.parts)
                log.event(log.CLAIM_PREPARED, object=f"claim {ref}", device=devices)

        async with anyio.create_task_group() as group:
            for ref in refs:
                group.start_soon(prepare, ref, name=f"prepare {ref}")
        return answers

    async def _prepare(self, ref: ClaimRef) -> Claim | str:
        until = anyio.current_time() + self._core.timeouts.claim_prepare
        before = self._recorded.get(ref.uid)
        try:
            document = await self._read_claim(ref, until)
            claim = await self._wait_until_usable(document, ref, until)
            if isinstance(claim, Refusal) and claim.waits:  # of a claim that the kubelet has forgotten?
                with anyio.move_on_after(self._core.timeouts.claim_read_other):
                    others = [each.ref for each in self._recorded.values() if each.ref.uid != ref.uid]
                    await self._release_missing(others)
                claim = await self._wait_until_usable(document, ref, until)
        except ClusterUnavailable as error:
            return f"{error.what}; {error.hint}, {_AGAIN}" if error.hint else f"{error.what}, {_AGAIN}"
        if isinstance(claim, Refusal):
            return f"{claim.text}, {_AGAIN}" if claim.waits else claim.text
        return await self._keep(claim, before)

    async def _wait_until_usable(self, document: Object, ref: ClaimRef, until: float) -> Claim | Refusal:
        """Return the claim, which is published as the user of its devices from then on; wait for devices that
        are not usable yet.
        """
        snapshots, checked = self._core.snapshots, False
        while True:
            seen, found = snapshots.version, self._decide(document, ref)
            if isinstance(found, Claim) and not checked:
                try:
                    await self._reread(found)
                    checked = True
                    continue
                except KernelRefused as error:
                    found = Refusal(f"{error.what}; {error.hint}", waits=True)
            if isinstance(found, Claim):
                if self._recorded.get(ref.uid) != found:
                    self._publish({**self._recorded, ref.uid: found})
                return found
            if not found.waits or anyio.current_time() >= until:
                return found
            checked = False
            with anyio.move_on_after(self._core.timeouts.claim_device_poll):
                await snapshots.newer(seen)

    def _decide(self, document: Object, ref: ClaimRef) -> Claim | Refusal:
        """The claim, or why it cannot be prepared, by the newest Snapshot."""
        decision = self._core.offering.one_turn()
        node = self._node._replace(pool=self._find_pool())
        found = claims.prepare(document, ref, node, decision)
        if isinstance(found, Claim):
            for part in decision.snapshot.reservations.withdrawn.intersection(_list_parts(found)):
                return Refusal(f"{part} is being removed, or bound to another driver", waits=True)
        return found

    async def _reread(self, claim: Claim) -> None:
        """Read the devices again, because the Snapshot may be older than their last change.

        :raises KernelRefused: if changed devices could not be read.
        """
        parts, functions = _list_parts(claim), self._core.snapshots.now.host.functions
        found = (functions.get(PciAddress(each)) for each in parts)
        bound = [each.address for each in found if each is not None and groups.is_vfio_bound(each)]
        await self._core.observer.recheck(parts, bound)

    async def _keep(self, claim: Claim, before: Claim | None) -> Claim | str:
        """Save the record and write the files; if that fails, the claim is as it was ``before``."""
        failure = ""
        with anyio.CancelScope(shield=True):  # an Unprepare waits for the end of this
            try:
                await threads.call(record.save, self._core.root.prefix, claim)
                await threads.call(self._write_files, claim)
            except KernelRefused as error:
                failure = f"{error.what}; {error.hint}, {_AGAIN}"
                if before is None:
                    await self._remove(claim.ref.uid)
                else:
                    self._publish({**self._recorded, claim.ref.uid: before})
        return failure or claim

    # Unprepare

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Release the devices of these claims; return "" for each UID.

        An unknown claim is no error: the kubelet may repeat a request, and a pod ends only after its success.
        """
        for ref in refs:
            for scope in self._waiting.pop(ref.uid, ()):
                scope.cancel()
        recorded = [self._recorded[ref.uid] for ref in refs if ref.uid in self._recorded]
        with anyio.move_on_after(self._core.timeouts.claim_release_read):  # else they would be shown as open
            await self._core.observer.refresh([part for claim in recorded for part in _list_parts(claim)])
        for ref in refs:
            async with self._locks.setdefault(ref.uid, anyio.Lock()):
                await self._remove(ref.uid)
            self._locks.pop(ref.uid, None)
        return dict.fromkeys((ref.uid for ref in refs), "")

    async def _remove(self, uid: str) -> None:
        """Remove a claim, its record and its files; ``release_orphans`` removes the rest later."""
        known = self._recorded.get(uid)
        await threads.call(self._remove_files, uid)
        if known is None:
            return
        log.event(log.CLAIM_RELEASED, object=f"claim {known.ref}", device=_list_parts(known))
        self._publish({each: claim for each, claim in self._recorded.items() if each != uid})
        with contextlib.suppress(OSError):
            await threads.call(record.remove, self._core.root.prefix, uid)

    # The record and the files

    def _publish(self, recorded: Mapping[str, Claim]) -> None:
        self._core.usage.set_claims(recorded)

    async def restore(self) -> None:
        """Read the record, and write the files of the claims again; drop the claims of another boot.

        After a reboot no pod of them runs, and the kubelet prepares the claims again that it needs.

        :raises KernelRefused: if the record cannot be read: devices in use would count as free.
        """
        self._publish(await threads.call(record.load, self._core.root.prefix))
        for claim in self._recorded.values():
            if claim.boot_id != self._node.boot_id:
                await self._remove(claim.ref.uid)
                continue
            try:
                await threads.call(self._write_files, claim)
            except KernelRefused as error:
                log.event(
                    log.CLAIM_FILES_LOST, object=f"claim {claim.ref}", error=error.what, hint=error.hint
                )

    # Claims that the kubelet has forgotten

    async def release_orphans(self) -> None:
        """Release claims of the time before the start that no longer exist, then wait for ever.

        The kubelet releases the claims of ended pods each minute. But if its state was deleted, it knows none
        of them, and their devices would be in use for ever.
        """
        former = [claim.ref for claim in self._recorded.values()]
        await anyio.sleep(self._core.timeouts.claim_release_by_kubelet)
        await self._release_missing(former)
        await anyio.sleep_forever()

    async def _release_missing(self, refs: Sequence[ClaimRef]) -> None:
        """Release those of the claims that the API server does not have any more."""
        for ref in refs:
            if ref.uid in self._recorded and not await self._exists(ref):
                await self.unprepare([ref])

    async def _exists(self, ref: ClaimRef) -> bool:
        """True if the claim is allocated, or if the API server does not answer."""
        until = anyio.current_time() + self._core.timeouts.claim_read_other
        try:
            document = await self._read_claim(ref, until)
        except ClusterUnavailable as error:
            return error.status != NOT_FOUND
        allocated = (document.get("status") or {}).get("allocation")
        return document["metadata"].get("uid") == ref.uid and bool(allocated)

    def _write_files(self, claim: Claim) -> None:
        """Write the metadata files, then the CDI file that mounts them. Blocks.

        :raises KernelRefused: if a file cannot be written.
        """
        for each in claim.metadata:
            _write(self._metadata_directory, each)
        _write(self._cdi_directory, claim.cdi_file)

    def _remove_files(self, uid: str) -> None:
        name = claim_files.cdi_file_name(self._node.driver, uid)
        with contextlib.suppress(OSError):
            Path(self._cdi_directory, name).unlink()
        shutil.rmtree(Path(self._metadata_directory, uid), ignore_errors=True)


def _read_boot_id(root: Root) -> str:
    """The id of this boot of the host; "" if there is none, as on a simulated host."""
    return root.text("/proc/sys/kernel/random/boot_id") or ""


def _list_parts(claim: Claim) -> tuple[str, ...]:
    """The ids of all HostDevices of the claim."""
    return tuple(dict.fromkeys(part for each in claim.devices for part in each.parts))


def _write(directory: str, file: ClaimFile) -> None:
    files.put(Path(directory, file.path), file.text, "the pod of the claim cannot start without it")

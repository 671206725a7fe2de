// SPDX-License-Identifier: Apache-2.0

// Package libvirt stands in for the binding to the C library. KubeVirt's host-device packages name these
// three things for hotplug; the reader only makes XML, so that neither libvirt nor a C compiler is needed.
package libvirt

// DomainDeviceModifyFlags says to which definition of a domain a change applies.
type DomainDeviceModifyFlags uint

// The values of libvirt's virDomainModificationImpact.
const (
	DOMAIN_DEVICE_MODIFY_LIVE   DomainDeviceModifyFlags = 1
	DOMAIN_DEVICE_MODIFY_CONFIG DomainDeviceModifyFlags = 2
)
